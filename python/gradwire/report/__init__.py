"""Reports on compression: as text, JSON, or TensorBoard scalars.

`gradwire.torch.ddp.Handle.report` returns a `Report`.
"""

import dataclasses
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol, SupportsFloat

from gradwire.report.text import columns, size

__all__ = ["ParameterReport", "Report", "Writer", "add_scalars"]

_OF_A_PARAMETER = ("bytes_per_step", "compression", "achieved", "trimmed", "residual_norm")
_ROWS = 20


@dataclass(frozen=True, slots=True)
class ParameterReport:
    """Figures of one parameter on this rank.

    Attributes
    ----------
    name : str
        Name of the parameter in the model.
    numel : int
        Number of entries.
    dense : bool
        Whether it is sent uncompressed at present.
    steps : int
        Number of times it was exchanged.
    bytes_per_step : float
        Mean size of its frames, or of its dense values, on this rank.
    compression : float
        Size of the gradient divided by ``bytes_per_step``.
    achieved : float or None
        Entries sent divided by entries requested (k-hat / k), over all steps; None if the
        sparsifier has no target.
    trimmed : int
        Entries that were selected but left in the residual because the slot was full.
    encode_ms : float
        Mean milliseconds of encoding per step.
    decode_ms : float
        Mean milliseconds of decoding per step.
    residual_norm : float or None
        Euclidean norm of the residual at present; None without a memory, or if not requested.
    state_bytes : int
        Bytes that this rank keeps for it, which are residual and moments with the buffers that an
        undo needs, and what a schedule measures.
    """

    name: str
    numel: int
    dense: bool
    steps: int
    bytes_per_step: float
    compression: float
    achieved: float | None
    trimmed: int
    encode_ms: float
    decode_ms: float
    residual_norm: float | None
    state_bytes: int


class Writer(Protocol):
    """A writer of scalars, such as `torch.utils.tensorboard.SummaryWriter`."""

    def add_scalar(self, tag: str, scalar_value: float, global_step: int, /) -> object:
        """Write one value.

        Parameters
        ----------
        tag : str
            Name of the chart.
        scalar_value : float
            The value.
        global_step : int
            The step that the value belongs to.
        """


@dataclass(frozen=True, slots=True, repr=False)
class Report:
    """Figures of gradwire on this rank since `attach` or the last reset.

    Attributes
    ----------
    rank, world_size : int
    codec : str
        The codec that was attached, as ``gradwire.adam(ratio=0.01)``.
    carried_by : str
        The backend that transfers frames between ranks: ``"gloo"``, from host memory, or one that
        reads them from the device, such as ``"nccl"``. Names both if values inside a node use a
        different one: ``"gloo between nodes, nccl inside"``.
    step : int
        Backward passes exchanged and not rolled back, ever, including those before a resume.
    steps : int
        Backward passes exchanged, including those that were rolled back.
    collectives : int
        Total number of collectives: one per bucket, or two or more with a leader, a sparse
        gradient, or dense parameters of another dtype than values that are summed.
    wire_bytes : float
        Bytes that this rank sends per step, including unused room in slots. With N ranks, a ring
        all-gather sends N - 1 slots and a ring all-reduce 2 (N - 1) / N vectors; a broadcast
        counts (N - 1) / N messages on every rank, the mean over the steps in which it leads.
    dense_wire_bytes : float
        Bytes that plain DDP would send per step: a ring all-reduce of the same buckets.
    compression : float
        ``dense_wire_bytes / wire_bytes``.
    slot_use : float
        Fraction of the slots that was used.
    achieved : float or None
        Entries sent divided by entries requested, over all compressed parameters; None if the
        sparsifier has no target.
    encode_ms, exchange_ms, decode_ms : float
        Mean milliseconds per step; most of this overlaps the backward pass.
    wait_ms : float
        Mean milliseconds between the last gradient and the end of the exchange: the time that the
        backward pass actually waited.
    residual_norm : float or None
        Current Euclidean norm over all residuals; None if not requested.
    state_bytes : int
        Bytes that this rank keeps for all parameters; see `ParameterReport`.
    parameters : tuple of ParameterReport
    node_wire_bytes, node_ms : float
        Bytes that this rank sends per step to other ranks of its node, dense, and mean milliseconds
        of that; 0 without a hierarchy. The other bytes are of what it sends to other nodes.
    exchange : str
        How the ranks combine frames: the codec's exchange, or what `gradwire.exchange.ByRanks` has
        taken for their number.
    decision : str
        With ``attach(model, "auto")``, what was measured and chosen, in a sentence; other figures
        are of the steps with the codec. With a codec, why nothing is compressed, if nothing is;
        else empty.
    schedule : str
        The schedule, its epoch, and the ratio that is in effect; empty if it changes nothing.
    """

    rank: int
    world_size: int
    codec: str
    carried_by: str
    step: int
    steps: int
    collectives: int
    wire_bytes: float
    dense_wire_bytes: float
    compression: float
    slot_use: float
    achieved: float | None
    encode_ms: float
    exchange_ms: float
    decode_ms: float
    wait_ms: float
    residual_norm: float | None
    state_bytes: int
    parameters: tuple[ParameterReport, ...]
    node_wire_bytes: float = 0.0
    node_ms: float = 0.0
    exchange: str = ""
    decision: str = ""
    schedule: str = ""

    def bytes_per_entry(self) -> float:
        """Return the bytes kept per entry of the parameters that have a state."""
        numel = sum(row.numel for row in self.parameters if row.state_bytes)
        return self.state_bytes / max(numel, 1)

    def to_json(self) -> str:
        """Return the report as a JSON object with these fields."""
        return json.dumps(dataclasses.asdict(self), indent=2)

    def to_tensorboard(
        self,
        writer: Writer,
        step: int | None = None,
        *,
        prefix: str = "gradwire",
        parameters: bool = True,
    ) -> None:
        """Write the figures as scalars, as `add_scalars` does.

        Parameters
        ----------
        writer : Writer
            Such as `torch.utils.tensorboard.SummaryWriter`.
        step : int, optional
            The step that the scalars belong to, by default this report's ``step``.
        prefix, parameters
            As of `add_scalars`.
        """
        at = self.step if step is None else step
        add_scalars(writer, self, at, prefix=prefix, parameters=parameters)

    def __repr__(self) -> str:
        return str(self)

    def __str__(self) -> str:
        buckets = self.collectives / max(self.steps, 1)
        stages = ("encode", "exchange", "decode")
        each_ms = ", ".join(f"{stage} {getattr(self, stage + '_ms'):.2f}" for stage in stages)
        dense = [row.bytes_per_step for row in self.parameters if row.dense]
        share = sum(dense) / max(sum(row.bytes_per_step for row in self.parameters), 1)
        named = {
            "codec": self.codec,
            "exchange": self.exchange,
            "decision": self.decision,
            "schedule": self.schedule,
            "bytes sent": f"{size(self.wire_bytes)} per step, {self.compression:.1f}x less than "
            f"plain DDP ({size(self.dense_wire_bytes)})",
            "uncompressed": f"{share:.0%} of these, for {len(dense)} of {len(self.parameters)} "
            "parameters",
            "inside the node": f"{size(self.node_wire_bytes)} per step, dense, {self.node_ms:.2f} "
            "ms"
            if self.node_wire_bytes
            else "",
            "collectives": f"{buckets:.1f} per step over {self.carried_by}, slots "
            f"{self.slot_use:.0%} full",
            "achieved": f"{_number(self.achieved, '.3f')} (entries sent / requested)",
            "ms per step": f"{each_ms}; wait after backward {self.wait_ms:.2f}",
            "residual norm": _number(self.residual_norm, ".4g"),
            "memory": f"{size(self.state_bytes)}, {self.bytes_per_entry():.3g} bytes per entry",
        }
        shown = sorted(self.parameters, key=lambda row: -row.numel)[:_ROWS]
        lines = [
            f"gradwire, rank {self.rank} of {self.world_size}: {self.steps} steps",
            *(f"  {name:<15} {value}" for name, value in named.items() if value),
            "",
            *columns(_table(shown), {"parameter"}),
        ]
        if left := len(self.parameters) - len(shown):
            lines.append(f"... and {left} smaller ones: see to_json()")
        return "\n".join(lines)


def _table(rows: Sequence[ParameterReport]) -> dict[str, list[str]]:
    return {
        "parameter": [row.name for row in rows],
        "entries": [f"{row.numel:,}" for row in rows],
        "bytes/step": [f"{row.bytes_per_step:,.0f}" for row in rows],
        "compression": [f"{row.compression:.1f}" for row in rows],
        "achieved": [_number(row.achieved, ".3f") for row in rows],
        "enc ms": [f"{row.encode_ms:.3f}" for row in rows],
        "dec ms": [f"{row.decode_ms:.3f}" for row in rows],
        "residual": ["dense" if row.dense else _number(row.residual_norm, ".4g") for row in rows],
    }


def _number(value: float | None, form: str) -> str:
    return "-" if value is None else format(value, form)


def add_scalars(
    writer: Writer,
    figures: Report | Mapping[str, SupportsFloat],
    step: int,
    *,
    prefix: str = "gradwire",
    parameters: bool = True,
) -> None:
    """Write a report, or the dict of `Handle.metrics`, as scalars.

    Parameters
    ----------
    writer : Writer
        Anything with ``add_scalar(tag, value, step)``, such as
        `torch.utils.tensorboard.SummaryWriter`. It is neither flushed nor closed.
    figures : Report or dict
        Figures that are not available are left out.
    step : int
        The step that the scalars belong to.
    prefix : str
        Tags are ``prefix/wire_bytes`` and so on, and ``prefix.residual_norm/NAME`` for
        the figures of a parameter: one group of charts for each of them.
    parameters : bool
        Write the figures of each parameter, too, if there are any.
    """
    if isinstance(figures, Report):
        every = {field.name: getattr(figures, field.name) for field in dataclasses.fields(figures)}
        numbers: Mapping[str, SupportsFloat] = {
            name: value
            for name, value in every.items()
            if isinstance(value, int | float) and name not in ("rank", "world_size")
        }
        rows = figures.parameters if parameters else ()
    else:
        numbers, rows = figures, ()
    for name, number in numbers.items():
        writer.add_scalar(f"{prefix}/{name}", float(number), step)
    for row in rows:
        for name in _OF_A_PARAMETER:
            value = getattr(row, name)
            if value is not None:
                writer.add_scalar(f"{prefix}.{name}/{row.name}", float(value), step)
