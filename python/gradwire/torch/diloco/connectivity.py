"""Which of the other ranks this one reaches."""

import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta

from gradwire.torch.transport import Gloo, Secret, Store, stores

__all__ = ["reachable"]


def reachable(
    connect: Callable[[], Store],
    rank: int,
    members: Sequence[str],
    timeout: timedelta,
    secret: Secret | None = None,
    host: str | None = None,
) -> tuple[str, ...]:
    """Connect with each of the others by itself, at the same time, as all of them do.

    Two that reach each other both say so: each keeps the connection until the other has seen it.

    Parameters
    ----------
    connect : callable
        Connects to the store of these members, each time anew: a wait there holds up nobody else.
    rank : int
        Of this one.
    members : sequence of str
        Their names, in the order of ranks.
    timeout : datetime.timedelta
        How long to wait for one of them.
    secret : Secret, optional
        Of these members: nobody is reached who does not know it.
    host : str, optional
        See `Gloo`.

    Returns
    -------
    tuple of str
        The names of those that were reached.
    """
    others = [other for other in range(len(members)) if other != rank]
    if not others:
        return ()
    deadline = time.monotonic() + timeout.total_seconds()

    def meets(other: int) -> bool:
        low, high = sorted((rank, other))
        pair: Gloo | None = None
        try:
            store = stores.PrefixStore(f"pair/{low}-{high}", connect())
            theirs = None if secret is None else secret.of("pair", low, high)
            pair = Gloo(store, int(rank == high), 2, timeout, theirs, host)
            pair.make()
            # Gloo lets one side return before the other, to which it would be an error to leave.
            store.set(f"met/{rank}", "")
            left = timedelta(seconds=max(deadline - time.monotonic(), 0.0))
            store.wait([f"met/{other}"], max(left, timeout / 10))
        except RuntimeError:  # an ExchangeError, or one of the store
            return False
        finally:
            if pair is not None:
                pair.leave()
        return True

    with ThreadPoolExecutor(len(others), "gradwire-reach") as threads:
        found = list(threads.map(meets, others))
    return tuple(members[other] for other, yes in zip(others, found, strict=True) if yes)
