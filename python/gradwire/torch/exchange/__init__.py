"""Carries out the exchange of a bucket, from the hook's call to the average; one file each.

`Exchange` is the interface to the pipeline, and `ExchangeBase` the base of what goes between ranks.
It guarantees that each task makes the same collectives on every rank, whatever a gradient contains;
that a failure on one rank is reported to all; and that a step that does not count leaves no trace.
`ValueSumExchange` is the base of the two exchanges that sum values on the wire.
`HierarchicalExchange` does an exchange between nodes, of what it has summed inside each of them.
"""

from gradwire.torch.exchange.base import ExchangeBase
from gradwire.torch.exchange.build import build
from gradwire.torch.exchange.hierarchical import HierarchicalExchange
from gradwire.torch.exchange.interface import Exchange
from gradwire.torch.exchange.outcome import Confirmation
from gradwire.torch.exchange.router import AutoExchangeRouter, ExchangeRouter

__all__ = [
    "AutoExchangeRouter",
    "Confirmation",
    "Exchange",
    "ExchangeBase",
    "ExchangeRouter",
    "HierarchicalExchange",
    "build",
]
