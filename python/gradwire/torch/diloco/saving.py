"""Saves and restores all that a rank has: what is shared, what is under way, and its residuals."""

from collections.abc import Mapping, Sequence
from typing import Any

from gradwire.torch.checkpoint import load as residuals
from gradwire.torch.checkpoint.load import Policy
from gradwire.torch.diloco import checkpoint
from gradwire.torch.diloco.checkpoint import Position, Shared
from gradwire.torch.diloco.flights import Flights
from gradwire.torch.diloco.replica import Replica
from gradwire.torch.engine.consensus import run_on_all
from gradwire.torch.transport import RankTopology

__all__ = ["load", "save"]


def save(replica: Replica, flights: Flights, position: Position) -> dict[str, Any]:
    """Return what `DiLoCo.state_dict` describes."""
    pending = flights.settled()
    saved = residuals.save(
        replica.compressed,
        replica.codec.get_config(),
        RankTopology.alone(flights.engine.rank, flights.engine.size),
        position["inner_step"],
        replica.scheduler,
        None,
    )
    return checkpoint.pack(saved, replica.parts, pending, flights.as_sent(), position)


def load(
    replica: Replica,
    flights: Flights,
    position: Position,
    state_dict: Mapping[str, Any] | Sequence[Mapping[str, Any]],
    policy: Policy,
) -> None:
    """Restore what `save` returned, on all ranks or on none. A collective.

    Raises
    ------
    ValueError, ExchangeError
        As `DiLoCo.load_state_dict`.
    """
    engine = flights.engine
    read: list[tuple[Shared, Position]] = []

    def unpack() -> tuple[Position, str]:
        read.append(checkpoint.unpack(state_dict, replica.fragments, engine.rank, engine.size))
        return read[0][1], checkpoint.digest(read[0][0])

    with engine.control.act("load_state_dict()") as channel:
        every = run_on_all(channel, unpack, "load")
        ((tensors, found),) = read
        for rank, (where, bits) in enumerate(every):
            problem = None
            if where != every[0][0]:
                problem = f"it is at {where}, that of rank 0 at {every[0][0]}"
            elif bits != every[0][1]:
                problem = (
                    "it is at the same step as that of rank 0, but its shared parameters, outer "
                    "momentum or averages have other values: load what one run has saved at once"
                )
            if problem is not None:
                raise ValueError(f"rank {rank} cannot load its state_dict: {problem}")
        place = RankTopology.alone(engine.rank, engine.size)
        residuals.load(
            replica.compressed, replica.scheduler, place, channel, channel, state_dict, policy
        )
    replica.load(tensors)
    position.update(found)
    flights.load(tensors["pending"], tensors["sent"])
