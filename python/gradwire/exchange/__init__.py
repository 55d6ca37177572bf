"""Exchanges: how the ranks combine what each of them selected.

A codec names one, `gradwire.torch.ddp` carries it out; encoding and decoding on one machine do not
look at it. Bytes a rank sends in one step, with N ranks and k entries chosen by each:

=================  =============================================================================
`AllGather`        its own frame, N - 1 times: any codec, but the volume grows with N
`AllReduce`        values only, 2 (N - 1) / N times: the ranks must choose the same entries
`LeaderIndices`    one rank's positions, and values 2 (N - 1) / N times: any selection, any N
=================  =============================================================================
"""

from gradwire._part import Part
from gradwire.exchange.all_gather import AllGather
from gradwire.exchange.all_reduce import AllReduce
from gradwire.exchange.leader_indices import LeaderIndices

__all__ = ["EXCHANGES", "AllGather", "AllReduce", "Exchange", "LeaderIndices"]

Exchange = AllGather | AllReduce | LeaderIndices
"""Any of the exchanges."""

EXCHANGES: tuple[type[Part], ...] = (AllGather, AllReduce, LeaderIndices)
"""All of them, for configurations to be read back."""
