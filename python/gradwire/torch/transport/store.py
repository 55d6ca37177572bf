"""The transport over a store: Gloo connects ranks without torch.distributed groups."""

import hmac
import os
import secrets
import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from datetime import timedelta
from typing import Any, TypeAlias

import torch
import torch.distributed as dist
from typing_extensions import override

from gradwire.torch.errors import ExchangeError, MembershipError
from gradwire.torch.transport.channel import (
    NO_DEVICE_BACKENDS,
    Channel,
    Transport,
    Work,
    close_in_time,
)
from gradwire.torch.transport.process_group import ProcessGroupChannel

_HASH = "sha256"
_NBYTES = 32  # of a nonce and of a proof


class Secret:
    """A key for HMAC-SHA256, known to all ranks and nobody else."""

    def __init__(self, key: bytes) -> None:
        self._key = key

    def of(self, *what: str | int) -> "Secret":
        """Derive the key for one purpose, which reveals no other key."""
        return Secret(self._proof(*(str(part).encode() for part in what)))

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
        message = b"".join(len(part).to_bytes(8, "big") + part for part in parts)
        return hmac.digest(self._key, message, _HASH)


def _all_gather(channel: Channel, mine: bytes) -> list[bytes]:
    every = torch.zeros(channel.size * _NBYTES, dtype=torch.uint8, device="cpu")
    channel.all_gather(every, torch.frombuffer(bytearray(mine), dtype=torch.uint8)).wait()
    return [row.numpy().tobytes() for row in every.view(channel.size, _NBYTES)]


stores: Any = dist  # whose stores and bare backends are not among its exported types
Store: TypeAlias = Any  # a torch.distributed.Store
_SOON = 0.002  # seconds between looks whether Gloo has told its address


class _Closed:
    """Takes the place of connections that were closed."""

    def __getattr__(self, name: str) -> Any:
        raise ExchangeError("the connections to the other ranks are closed")


class GlooChannel(ProcessGroupChannel):
    """A channel over separate connections: a ``torch.distributed.ProcessGroupGloo``."""

    @property
    @override
    def is_open(self) -> bool:
        return not isinstance(self.group, _Closed)

    @override
    def set_timeout(self, timeout: timedelta) -> None:
        self.group._set_default_timeout(timeout)
        self._timeout = timeout

    @override
    def _start(self, start: Callable[..., Work], *arguments: Any) -> Work:
        return start(*arguments)

    def close(self) -> None:
        """Close the connections, once they are idle. Other ranks that wait in it fail."""
        self.group = _Closed()


class Gloo(Transport):
    """Connects ranks by a store. Frames of all devices are on the host.

    The store must have no entries of other connections. With a secret, only ranks that know it are
    connected: addresses in the store are authenticated, and so is each connection before any other
    data is used. Gloo listens at the address ``host`` of this machine, or by default at that of its
    name, unless GLOO_SOCKET_IFNAME names interfaces.
    """

    def __init__(
        self,
        store: Store,
        rank: int,
        size: int,
        timeout: timedelta,
        secret: Secret | None = None,
        host: str | None = None,
    ) -> None:
        self._store = store
        self._rank = rank
        self._size = size
        self._timeout = timeout
        self._secret = secret if size > 1 else None
        self._host = None if os.environ.get("GLOO_SOCKET_IFNAME") else host
        self._made: list[GlooChannel] = []
        self.connected = False  # whether this rank has reached all others at least once

    @override
    def make(self, device_backends: Mapping[str, str] = NO_DEVICE_BACKENDS) -> GlooChannel:
        """Make a channel. A collective.

        Raises an ExchangeError if Gloo could not connect the ranks, a MembershipError if somebody
        without the secret takes part.
        """
        number = str(len(self._made))
        store = stores.PrefixStore(number, self._store)
        secret = None if self._secret is None else self._secret.of("channel", number)
        try:
            backend = self._backend(store) if secret is None else self._proven(store, secret)
        except MembershipError:
            raise
        except RuntimeError as error:
            raise ExchangeError(
                f"Gloo could not connect {self._size} ranks that the store knows. If it finds no "
                "network that connects the machines, name its interface with GLOO_SOCKET_IFNAME "
                f"({str(error).strip()})"
            ) from error
        self.connected = True
        channel = GlooChannel(backend)
        self._made.append(channel)
        if secret is not None:
            secret.prove(channel)
        return channel

    def _backend(self, store: Store) -> Any:
        group = stores.ProcessGroupGloo
        if self._host is None:
            return group(store, self._rank, self._size, timeout=self._timeout)
        options = group._Options()
        options._devices = [group.create_device(hostname=self._host)]
        options._timeout = self._timeout
        return group(store, self._rank, self._size, options)

    def _proven(self, store: Store, secret: Secret) -> Any:
        """Give Gloo a store with authenticated addresses only.

        They are copied to a separate store, because torch does not accept a store in Python.
        """
        addresses, made = stores.HashStore(), Future[Any]()
        addresses.set_timeout(self._timeout)

        def connect() -> None:
            try:
                made.set_result(self._backend(addresses))
            except BaseException as error:
                made.set_exception(error)

        # A thread that nobody has to wait for: Gloo gives up by itself, after the timeout.
        threading.Thread(target=connect, name="gradwire-connect", daemon=True).start()
        for device in range(os.environ.get("GLOO_SOCKET_IFNAME", "").count(",") + 1):
            mine, *others = (
                f"{device}/{rank}"
                for rank in sorted(range(self._size), key=lambda rank: rank != self._rank)
            )
            while not addresses.check([mine]):
                if made.done():  # without it: it has failed
                    return made.result()
                time.sleep(_SOON)
            store.set(mine, secret.seal(mine, addresses.get(mine)))
            store.wait(others, self._timeout)
            for address in others:
                addresses.set(address, secret.open(address, store.get(address)))
        return made.result()

    @override
    def leave(self) -> None:
        made, self._made = self._made, []
        close_in_time(GlooChannel.close, made)
