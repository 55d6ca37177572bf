"""The report on the running sums of buckets."""

import math
from collections.abc import Iterable
from typing import Any

from gradwire.presets import call_of
from gradwire.report import ParameterReport, Report
from gradwire.torch.engine.metrics import Counters, StepTimes
from gradwire.torch.engine.parameter import ParameterSlot
from gradwire.torch.transport import RankTopology


def figures(times: StepTimes, counters: Counters, ranks: int, step: int) -> dict[str, Any]:
    """Return the figures of `Report` that need no residual; ``ranks`` exchange frames."""
    sums = counters.total()
    steps = max(times.steps, 1)
    wire = times.wire_bytes / steps
    dense = 2 * times.dense_bytes * (ranks - 1) / ranks / steps
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


def build_report(
    codec: object,
    parameters: Iterable[ParameterSlot],
    place: RankTopology,
    times: StepTimes,
    counters: Counters,
    carried_by: str,
    step: int,
    *,
    exchange: str,
    residuals: bool,
    decision: str,
    schedule: str,
) -> Report:
    """Return a report on these parameters, whose counters come in the same order.

    On request, the norms of residuals are computed, which reads each residual once. ``codec`` is
    the attached codec and ``exchange`` its exchange among these ranks; ``decision`` explains the
    present way of averaging, and ``schedule`` the schedule's position.
    """
    parameters = list(parameters)
    norms = [
        slot.state.residual_norm if residuals and slot.has_state else None for slot in parameters
    ]
    known = [norm for norm in norms if norm is not None]
    described = [
        ParameterReport(
            name=slot.name,
            numel=slot.numel,
            dense=not slot.compressed,
            steps=sums.steps,
            bytes_per_step=sums.nbytes / max(sums.steps, 1),
            compression=slot.numel * slot.tensor.element_size() * sums.steps / sums.nbytes
            if sums.nbytes
            else 1.0,
            achieved=sums.count / sums.target if sums.target else None,
            trimmed=sums.trimmed,
            encode_ms=1e-6 * sums.encode_ns / max(sums.steps, 1),
            decode_ms=1e-6 * sums.decode_ns / max(sums.steps, 1),
            residual_norm=norm,
            state_bytes=slot.nbytes,
        )
        # The last counter, of replaced parameters, has no slot.
        for slot, sums, norm in zip(parameters, counters.all(), norms, strict=False)
    ]
    return Report(
        rank=place.rank,
        world_size=place.size,
        codec=call_of(codec),
        carried_by=carried_by,
        **figures(times, counters, place.nodes, step),
        residual_norm=math.hypot(*known) if residuals else None,
        state_bytes=sum(slot.nbytes for slot in parameters),
        parameters=tuple(described),
        exchange=exchange,
        decision=decision,
        schedule=schedule,
    )
