"""A group of ranks that stays as it is."""

from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from typing import Any

import torch.distributed as dist

from gradwire.torch.checkpoint.load import Policy
from gradwire.torch.collective.calls import connect, group_of
from gradwire.torch.diloco.checkpoint import Position
from gradwire.torch.diloco.flights import Flights
from gradwire.torch.diloco.replica import Replica
from gradwire.torch.diloco.saving import load
from gradwire.torch.diloco.sharing import share
from gradwire.torch.engine.consensus import agree
from gradwire.torch.transport import ProcessGroups

__all__ = ["Fixed"]


class Fixed:
    """The ranks of a process group. Making one is a collective: all begin as rank 0.

    Parameters
    ----------
    replica : Replica
    position : dict
        How far training is; kept up to date.
    process_group : torch.distributed.ProcessGroup or None
    timeout : datetime.timedelta or None

    Attributes
    ----------
    flights : Flights
    members : tuple of str
        Nobody: these ranks have no names.
    generation : int
        0.

    Raises
    ------
    ValueError
        The ranks have different settings.
    """

    members: tuple[str, ...] = ()
    generation = 0

    def __init__(
        self,
        replica: Replica,
        position: Position,
        process_group: dist.ProcessGroup | None,
        timeout: timedelta | None,
    ) -> None:
        self._replica = replica
        self._position = position
        engine = connect(ProcessGroups(group_of(process_group), timeout), replica.like)
        try:
            with engine.control.act("DiLoCo()") as channel:
                agree(channel, "made a DiLoCo", replica.settings)
                share(channel, [*replica.shared(), *replica.buffers], 0)
        except BaseException:
            engine.abandon()
            raise
        replica.start(engine.rank)
        self.flights = Flights(replica, position, engine)
        self.flights.restore()

    def guard(self, advance: Callable[[Callable[[], None]], None]) -> None:
        """Have an inner step's exchanges made."""
        advance(lambda: None)

    def load(
        self, state_dict: Mapping[str, Any] | Sequence[Mapping[str, Any]], policy: Policy
    ) -> None:
        """Restore what was saved, whatever is under way has come to. A collective."""
        self.flights.arrive()
        load(self._replica, self.flights, self._position, state_dict, policy)

    def leave(self) -> None:
        """Return: nobody waits for this rank."""
