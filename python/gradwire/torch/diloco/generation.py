"""A generation of ranks: connects its members, and finds out which of them reach each other."""

import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import timedelta

from gradwire.torch.transport import Gloo, Secret, Store, stores


@dataclass(frozen=True, slots=True)
class Generation:
    """A generation that includes this rank."""

    generation: int
    rank: int
    members: tuple[str, ...]
    trained: bool  # a member, also an earlier one, had shared parameters: nobody makes up new ones
    connect: Callable[[], Store]  # a new connection to the members' store: a wait blocks no other
    timeout: timedelta
    secret: Secret | None = None  # by which the members know each other, if there is a token
    host: str | None = None  # that of `Gloo`

    def transport(self) -> Gloo:
        """Return the transport that connects all members."""
        size = len(self.members)
        return Gloo(self.connect(), self.rank, size, self.timeout, self.secret, self.host)

    def reachable(self) -> tuple[str, ...]:
        """Return the members that this rank reached within the timeout. All ranks call it at once.

        The result is symmetric: a rank stays connected until the other one has seen it.
        """
        others = [other for other in range(len(self.members)) if other != self.rank]
        if not others:
            return ()
        deadline = time.monotonic() + self.timeout.total_seconds()

        def meets(other: int) -> bool:
            low, high = sorted((self.rank, other))
            pair: Gloo | None = None
            try:
                store = stores.PrefixStore(f"pair/{low}-{high}", self.connect())
                secret = None if self.secret is None else self.secret.of("pair", low, high)
                pair = Gloo(store, int(self.rank == high), 2, self.timeout, secret, self.host)
                pair.make()
                # Gloo lets one side return before the other, to which it would be an error to
                # leave.
                store.set(f"met/{self.rank}", "")
                left = timedelta(seconds=max(deadline - time.monotonic(), 0.0))
                store.wait([f"met/{other}"], max(left, self.timeout / 10))
            except RuntimeError:  # an ExchangeError, or one of the store
                return False
            finally:
                if pair is not None:
                    pair.leave()
            return True

        with ThreadPoolExecutor(len(others), "gradwire-reach") as threads:
            found = list(threads.map(meets, others))
        return tuple(self.members[other] for other, met in zip(others, found, strict=True) if met)
