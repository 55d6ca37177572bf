"""Saves and restores all that a rank has: what is shared, what is under way, and its residuals."""

import json
from collections.abc import Mapping, Sequence
from typing import Any

from gradwire.torch.diloco import checkpoint
from gradwire.torch.diloco.checkpoint import Position
from gradwire.torch.diloco.flights import Flights
from gradwire.torch.diloco.replica import Replica
from gradwire.torch.reducer import checkpoint as residuals
from gradwire.torch.reducer.checkpoint import Policy
from gradwire.torch.transport import Place

__all__ = ["load", "save"]


def save(replica: Replica, flights: Flights, position: Position) -> dict[str, Any]:
    """Return what `DiLoCo.state_dict` describes."""
    pending = flights.settled()
    saved = residuals.save(
        replica.compressed,
        replica.codec.get_config(),
        Place.alone(flights.engine.rank, flights.engine.size),
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
    problem: str | None = None
    with engine.control.act("load_state_dict()") as channel:
        try:
            tensors, found = checkpoint.unpack(
                state_dict, replica.fragments, engine.rank, engine.size
            )
        except (ValueError, TypeError, KeyError) as error:
            problem = f"{type(error).__name__}: {error}"
        told = channel.all_gather_object((problem, None if problem else json.dumps(found)))
        for rank, (text, where) in enumerate(told):
            if text is not None or where != told[0][1]:
                text = text or f"it is at {where}, that of rank 0 at {told[0][1]}"
                raise ValueError(f"rank {rank} cannot load its state_dict: {text}")
        place = Place.alone(engine.rank, engine.size)
        residuals.load(
            replica.compressed, replica.scheduler, place, channel, channel, state_dict, policy
        )
    replica.load(tensors)
    position.update(found)
    flights.load(tensors["pending"], tensors["sent"])
