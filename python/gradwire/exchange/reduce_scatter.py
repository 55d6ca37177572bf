"""Sparse reduce-scatter: owners of ranges sum, select again, and keep what falls out."""

import dataclasses
from typing import ClassVar

from gradwire.exchange.owners import Owners
from gradwire.memory import Memory
from gradwire.quantize.base import Quantizer
from gradwire.sparsify.base import Sparsifier

__all__ = ["ReduceScatter"]


@dataclasses.dataclass(frozen=True, repr=False)
class ReduceScatter(Owners):
    """Every rank sums the entries of a range of positions, and sends the largest sums to all ranks.

    The entries of a bucket are divided among N ranks. A rank's frames are cut by range, without
    decoding a value, and the parts sent to their owners. Each owner adds up what it is sent, in
    rank order and float32; selects of the sums as many as a rank has sent there on average, the
    largest; encodes them with the codec's quantizer; and sends them to all ranks. If all entries
    are asked for, as by a ratio of 1, all sums are sent. What falls out of this second selection,
    and what the quantizer does not say, goes into the owner's own residual: as with `AllGather`,
    what is applied, N times, plus what is left in the residuals of all ranks equals what was put
    in, exactly for float32 values but for the rounding of sums.

    With k entries a rank, k of them go out and k come in, whatever the number of ranks; with
    `AllGather`, (N - 1) k come in. In return, a bucket takes four messages one after another
    instead of one, and small sums are sent later. So this is for many ranks: see docs/exchanges.md.

    The codec needs a memory with a residual that can be undone: not `gradwire.memory.NoMemory`, and
    no ``low_memory``. It merges on the host.
    """

    kind: ClassVar[str] = "reduce_scatter"

    def check(self, sparsify: Sparsifier, quantize: Quantizer) -> None:
        """Refuse a codec that sends every entry, or whose values cannot be cut.

        Raises
        ------
        ValueError
            Every entry is sent, or the quantizer is of another package.
        """
        if not sparsify.selects:
            raise ValueError(
                "ReduceScatter needs a sparsifier that selects entries, and "
                f"{type(sparsify).__name__} sends every entry; use "
                "exchange=gradwire.exchange.QuantizedAllReduce(), AllReduce() or AllGather()"
            )
        self.check_quantizer(quantize)

    def check_memory(self, memory: Memory) -> None:
        """Refuse memories that cannot keep what falls out.

        Raises
        ------
        ValueError
            There is no residual, or a step cannot be taken back out of it.
        """
        if not memory.keeps:
            raise ValueError(
                f"ReduceScatter leaves a part of the sums in the residuals of their owners, and "
                f"{memory!r} has none; use memory=gradwire.memory.Residual(), or "
                "exchange=gradwire.exchange.AllGather()"
            )
        super().check_memory(memory)
