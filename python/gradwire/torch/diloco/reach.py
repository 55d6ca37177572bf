"""Which of the other ranks this one reaches."""

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta

from gradwire.torch.errors import ExchangeError, MembershipError
from gradwire.torch.transport import Gloo, Store, stores

__all__ = ["reached"]


def reached(
    connect: Callable[[], Store], rank: int, members: Sequence[str], timeout: timedelta
) -> tuple[str, ...]:
    """Connect with each of the others by itself, at the same time, as all of them do.

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

    Returns
    -------
    tuple of str
        The names of those that were reached.
    """

    def meets(other: int) -> bool:
        low, high = sorted((rank, other))
        try:
            store = stores.PrefixStore(f"pair/{low}-{high}", connect())
            pair = Gloo(store, int(rank == high), 2, timeout)
            pair.make()
        except (ExchangeError, MembershipError):
            return False
        pair.leave()
        return True

    others = [other for other in range(len(members)) if other != rank]
    with ThreadPoolExecutor(len(others), "gradwire-reach") as threads:
        found = list(threads.map(meets, others))
    return tuple(members[other] for other, yes in zip(others, found, strict=True) if yes)
