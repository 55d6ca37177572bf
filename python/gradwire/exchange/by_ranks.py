"""The default exchange: an all-gather among few ranks, a reduce-scatter among many."""

import dataclasses
from typing import ClassVar

from gradwire.exchange.all_gather import AllGather
from gradwire.exchange.base import Exchange
from gradwire.exchange.owners import owners_for
from gradwire.memory.base import Memory
from gradwire.quantize.base import Quantizer
from gradwire.sparsify.base import Sparsifier


@dataclasses.dataclass(frozen=True, repr=False)
class ByRanks(Exchange):
    """The default: an all-gather among few ranks; from eight on, a reduce-scatter if possible.

    `attach` decides once it knows how many ranks exchange gradients. Among fewer than eight it is
    `AllGather`. From eight on it is `ReduceScatter` for a codec that selects entries, and
    `QuantizedAllReduce` for one that sends all of them. It stays `AllGather` where these are not
    possible: with a codec that they refuse, in a hierarchy, with FSDP2 and Horovod. Everything but
    `attach`, such as `gradwire.torch.all_reduce`, always gathers.

    Why eight: from there on, for 25 million parameters, the cost model finds the reduce-scatter no
    slower on any link from 0.1 to 10 Gbit/s, with a quarter of the bytes or less; with fewer ranks
    they gain too little for a second selection or rounding, which cost 0.02 to 0.03 in loss: see
    docs/exchanges-inside.md.

    States and frames are the same, so a checkpoint of one can be resumed with the other.
    """

    kind: ClassVar[str] = "by_ranks"
    gathers_frames: ClassVar[bool] = True
    divides: ClassVar[bool] = False
    MANY: ClassVar[int] = 8
    """Least number of ranks for owners."""

    def check(self, sparsify: Sparsifier, quantize: Quantizer) -> None:
        """Accept every codec."""

    def for_ranks(
        self, ranks: int, sparsify: Sparsifier, quantize: Quantizer, memory: Memory
    ) -> Exchange:
        """Return the exchange of a codec with these parts among ``ranks`` ranks."""
        owners = owners_for(sparsify, quantize, memory) if ranks >= self.MANY else None
        return owners or AllGather()
