"""Exchanges: how the ranks combine the entries that each of them selected.

The exchange is part of the codec, and `gradwire.torch.ddp` carries it out; encoding and decoding on
one machine do not use it. Data that each rank sends per step, with N ranks that select k entries:

====================  ==============================================================================
`ByRanks`             the default: `AllGather` among few ranks, a reduce-scatter among many
`AllGather`           its own frame, N - 1 times: any codec, but the volume grows with N
`AllReduce`           values only, 2 (N - 1) / N times: all ranks must select the same entries
`LeaderIndices`       one rank's positions, and values 2 (N - 1) / N times: any selection, any N
`ReduceScatter`       parts of its frame to the owners of ranges, and as much again of the sums from
                      them: any selection, any N
`QuantizedAllReduce`  the same for codecs that send every entry: sums are quantized again
====================  ==============================================================================
"""

from gradwire._part import own_parts
from gradwire.exchange.base import Exchange as Exchange

# One line each, in the order in which they are listed: importing a class registers it.
# isort: off
from gradwire.exchange.frames import AllGather as AllGather
from gradwire.exchange.sums import AllReduce as AllReduce
from gradwire.exchange.sums import LeaderIndices as LeaderIndices
from gradwire.exchange.frames import ReduceScatter as ReduceScatter
from gradwire.exchange.frames import QuantizedAllReduce as QuantizedAllReduce
from gradwire.exchange.frames import ByRanks as ByRanks
# isort: on

EXCHANGES: tuple[type[Exchange], ...] = own_parts(Exchange)  #: all exchanges

__all__ = ["Exchange", *(part.__name__ for part in EXCHANGES)]
