"""Computes the figures of a report from the running sums."""

import math
from collections.abc import Iterable
from typing import Any

from gradwire.report import ParameterReport, Report
from gradwire.torch.engine import timestamps as marks
from gradwire.torch.engine.counters import Counters, ParameterCounts
from gradwire.torch.engine.parameter import ParameterSlot
from gradwire.torch.exchange import Exchange
from gradwire.torch.transport import RankTopology

__all__ = ["clear", "figures", "report"]


def figures(exchange: Exchange, tallies: Counters, step: int) -> dict[str, Any]:
    """Return the figures over all parameters, by their names in `Report`; none read a residual."""
    times, sums = exchange.times, tallies.total()
    steps = max(times.steps, 1)
    wire = times.wire_bytes / steps
    dense = 2 * times.dense_bytes * (exchange.world_size - 1) / exchange.world_size / steps
    return {
        "step": step,
        "steps": times.steps,
        "collectives": times.collectives,
        "wire_bytes": wire,
        "dense_wire_bytes": dense,
        "compression": dense / wire if wire else 1.0,
        "node_wire_bytes": times.node_bytes / steps,
        "slot_use": sums.nbytes / max(times.slot_bytes, 1),
        "achieved": sums.count / sums.target if sums.target else None,
        **{f"{stage}_ms": 1e3 * total / steps for stage, total in times.seconds.items()},
    }


def report(
    codec: object,
    parameters: Iterable[ParameterSlot],
    exchange: Exchange,
    place: RankTopology,
    tallies: Counters,
    step: int,
    *,
    residuals: bool,
    decision: str = "",
    schedule: str = "",
) -> Report:
    """Return a report on these parameters, whose tallies come in the same order.

    Parameters
    ----------
    codec : object
        What was attached, for its repr.
    parameters : iterable of ParameterSlot
    exchange : Exchange
    place : RankTopology
        Of this rank.
    tallies : Counters
    step : int
        Backward passes that counted, ever.
    residuals : bool
        Compute the norms of the residuals, which reads each of them once.
    decision : str
        Why buckets are averaged as they are.
    schedule : str
        Where the schedule is.
    """
    parameters = list(parameters)
    norms = [_norm(each) if residuals else None for each in parameters]
    known = [norm for norm in norms if norm is not None]
    return Report(
        rank=place.rank,
        world_size=place.size,
        codec=repr(codec),
        carried_by=", ".join(sorted(set(exchange.carriers.values()))) or "gloo",
        **figures(exchange, tallies, step),
        residual_norm=math.hypot(*known) if residuals else None,
        state_bytes=sum(each.nbytes for each in parameters),
        parameters=tuple(map(_describe, parameters, tallies.all(), norms)),
        timeline=marks.timeline(exchange.times.recent),
        decision=decision,
        schedule=schedule,
    )


def clear(exchange: Exchange, tallies: Counters) -> None:
    """Start all running sums from zero, except the count of steps."""
    exchange.times.clear()
    tallies.clear()


def _norm(parameter: ParameterSlot) -> float | None:
    return None if parameter.state is None else parameter.state.residual_norm


def _describe(
    parameter: ParameterSlot, tally: ParameterCounts, norm: float | None
) -> ParameterReport:
    steps = max(tally.steps, 1)
    dense = parameter.numel * parameter.tensor.element_size()
    return ParameterReport(
        name=parameter.name,
        numel=parameter.numel,
        dense=not parameter.compressed,
        steps=tally.steps,
        bytes_per_step=tally.nbytes / steps,
        compression=dense * tally.steps / tally.nbytes if tally.nbytes else 1.0,
        achieved=tally.count / tally.target if tally.target else None,
        trimmed=tally.trimmed,
        encode_ms=1e-6 * tally.encode_ns / steps,
        decode_ms=1e-6 * tally.decode_ns / steps,
        residual_norm=norm,
        state_bytes=parameter.nbytes,
    )
