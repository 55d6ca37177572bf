"""The report of DiLoCo: bytes sent and seconds waited."""

import dataclasses
import json
from typing import Self

from gradwire.presets import call_of
from gradwire.torch.diloco.exchanges import FragmentExchanges
from gradwire.torch.diloco.replica import Replica


@dataclasses.dataclass(frozen=True, slots=True)
class DiLoCoReport:
    """The figures of one rank since its `DiLoCo` was created."""

    rank: int  #: Of this process.
    world_size: int  #: Number of ranks.
    codec: str  #: Of the pseudo-gradients, as ``gradwire.sparseloco()``.
    inner_steps: int  #: Steps of the inner optimizer.
    exchanges: int  #: Exchanges of a fragment that were sent, with those that failed.
    #: Bytes that this rank sends per inner step, as `gradwire.torch.ddp.Report` counts them, with
    #: the messages by which the ranks meet.
    wire_bytes: float
    #: Bytes that plain DDP sends per step: a ring all-reduce of all gradients in their own dtype.
    dense_wire_bytes: float
    compression: float  #: ``dense_wire_bytes / wire_bytes``.
    wait_ms: float  #: Mean milliseconds that `DiLoCo.step` waited for an exchange.
    residual_norm: float | None  #: Euclidean norm over all residuals.

    @classmethod
    def of(cls, replica: Replica, flights: FragmentExchanges, steps: int) -> Self:
        """Return the report of a rank after ``steps`` inner steps."""
        sent, seconds, exchanges = flights.figures()
        wire = sent / max(steps, 1)
        world = flights.engine.size
        dense = 2 * (world - 1) / world * sum(each.tensor.nbytes for each in replica.records)
        return cls(
            rank=flights.engine.rank,
            world_size=world,
            codec=call_of(replica.codec),
            inner_steps=steps,
            exchanges=exchanges,
            wire_bytes=wire,
            dense_wire_bytes=dense,
            compression=dense / wire if sent and dense else 1.0,
            wait_ms=1e3 * seconds / max(exchanges, 1),
            residual_norm=flights.engine.pipeline.run_in_sender(replica.residual_norm),
        )

    def to_json(self) -> str:
        """Return the report as JSON."""
        return json.dumps(dataclasses.asdict(self), indent=2)

    def __str__(self) -> str:
        norm = "-" if self.residual_norm is None else f"{self.residual_norm:.4g}"
        head = f"gradwire DiLoCo, rank {self.rank} of {self.world_size}"
        less = f"{self.compression:,.0f}x less than plain DDP ({self.dense_wire_bytes:,.0f})"
        lines = (
            f"{head}: {self.inner_steps} inner steps, {self.exchanges} exchanges",
            f"  codec           {self.codec}",
            f"  bytes sent      {self.wire_bytes:,.0f} per step, {less}",
            f"  waited          {self.wait_ms:.2f} ms per exchange",
            f"  residual norm   {norm}",
        )
        return "\n".join(lines)
