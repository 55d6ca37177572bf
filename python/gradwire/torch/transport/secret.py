"""Lets ranks prove that they know the same secret, in a store and over connections."""

import hmac
import secrets

import torch

from gradwire.torch.errors import MembershipError
from gradwire.torch.transport.channel import Channel

_HASH = "sha256"
_NBYTES = 32  # of a nonce and of a proof


class Secret:
    """A key for HMAC-SHA256, known to all ranks and nobody else."""

    def __init__(self, key: bytes) -> None:
        self._key = key

    def of(self, *what: str | int) -> "Secret":
        """Derive the key for one purpose, which reveals no other key."""
        return Secret(self._proof(*(str(each).encode() for each in what)))

    def seal(self, key: str, value: bytes) -> bytes:
        """Return a value for a store, signed together with its key in the store."""
        return self._proof(key.encode(), value).hex().encode() + b" " + value

    def open(self, key: str, sealed: bytes) -> bytes:
        """Return a value that was sealed.

        Raises a MembershipError if somebody without the secret has written it, or it was written
        under another key.
        """
        proof, _, value = sealed.partition(b" ")
        if not hmac.compare_digest(proof, self._proof(key.encode(), value).hex().encode()):
            raise MembershipError(
                f"{key!r} in the store was not written with this rank's token. Either the ranks "
                "have different tokens and need the same one, or somebody else writes to the "
                "store: use one that only the ranks can reach"
            )
        return value

    def prove(self, channel: Channel) -> None:
        """Let each rank prove to all others that it has the secret. A collective.

        A proof covers all ranks' nonces, so that it cannot be replayed. A rank without a valid
        proof is a MembershipError.
        """
        nonce = secrets.token_bytes(_NBYTES)
        nonces = _all_gather(channel, nonce)
        transcript = b"".join(nonces)
        proofs = _all_gather(channel, self._proof(b"%d" % channel.rank, transcript))
        for rank, proof in enumerate(proofs):
            expected = self._proof(b"%d" % rank, transcript)
            if nonces[channel.rank] != nonce or not hmac.compare_digest(proof, expected):
                raise MembershipError(
                    f"the peer connected as rank {rank} does not know the token: somebody else can "
                    "reach the ports of the ranks. None of its data was used; restart from a "
                    "checkpoint, on a network that only the ranks can reach",
                    rank,
                )

    def _proof(self, *parts: bytes) -> bytes:
        message = b"".join(len(each).to_bytes(8, "big") + each for each in parts)
        return hmac.digest(self._key, message, _HASH)


def _all_gather(channel: Channel, mine: bytes) -> list[bytes]:
    every = torch.zeros(channel.size * _NBYTES, dtype=torch.uint8, device="cpu")
    channel.all_gather(every, torch.frombuffer(bytearray(mine), dtype=torch.uint8)).wait()
    return [each.numpy().tobytes() for each in every.view(channel.size, _NBYTES)]
