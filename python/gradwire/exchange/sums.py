"""Values are summed on the wire: at positions that all ranks know, or that one rank selects."""

import dataclasses
from typing import ClassVar

from gradwire.exchange.base import Exchange
from gradwire.memory.base import Memory
from gradwire.quantize.base import Quantizer
from gradwire.sparsify.base import Sparsifier


@dataclasses.dataclass(frozen=True, repr=False)
class AllReduce(Exchange):
    """Sum the values in one all-reduce, without sending positions.

    The bytes that a rank sends do not grow with the number of ranks. All ranks must select the same
    positions: every position (`gradwire.sparsify.All`), or positions drawn from a shared seed.

    Values are sent in the quantizer's type, and partial sums are rounded to it. The rounding error
    of a rank's own values stays in its residual; that of the partial sums is lost.

    References
    ----------
    Stich, Cordonnier, Jaggi, "Sparsified SGD with Memory", NeurIPS 2018, section 2: random-k.
    """

    kind: ClassVar[str] = "all_reduce"
    gathers_frames: ClassVar[bool] = False
    divides: ClassVar[bool] = False

    def check(self, sparsify: Sparsifier, quantize: Quantizer, memory: Memory) -> None:
        """Refuse a codec whose values cannot be summed position by position."""
        if not sparsify.shared:
            raise ValueError(
                f"AllReduce sums values at the same positions on all ranks, but with "
                f"{type(sparsify).__name__} every rank selects its own; use "
                "exchange=gradwire.exchange.AllGather(), or LeaderIndices(), where one rank "
                "selects for all"
            )
        quantize.check_summable("AllReduce")


@dataclasses.dataclass(frozen=True, repr=False)
class LeaderIndices(Exchange):
    """One rank, the leader, broadcasts its positions; all ranks sum their values there (CLT-k).

    The leader selects entries with the codec's sparsifier; one all-reduce sums k values. Every rank
    encodes at the same positions, so compressing commutes with averaging over ranks, and the volume
    does not grow with their number. The leader changes from step to step, and different buckets of
    one step have different leaders.

    This relies on residuals that are similar across ranks, which `gradwire.memory.LowPass` helps
    with. Values are sent in the quantizer's type, and partial sums are rounded to it.

    References
    ----------
    Chen et al., "ScaleCom: Scalable Sparsified Gradient Compression for Communication-Efficient
    Distributed Training", NeurIPS 2020, section 2.
    """

    kind: ClassVar[str] = "leader_indices"
    gathers_frames: ClassVar[bool] = False
    divides: ClassVar[bool] = False

    def check(self, sparsify: Sparsifier, quantize: Quantizer, memory: Memory) -> None:
        """Refuse a codec that sends every entry, or whose values cannot be summed."""
        if not sparsify.selects:
            raise ValueError(
                "LeaderIndices needs a sparsifier that selects entries, and "
                f"{type(sparsify).__name__} sends every entry; use "
                "exchange=gradwire.exchange.AllReduce()"
            )
        quantize.check_summable("LeaderIndices")
