"""Carries out the exchange of a bucket, from the hook's call to the average; one file each.

`BucketExchange` is the interface to the pipeline, `ExchangeBase` the base of exchanges between
ranks. It guarantees that each task starts the same collectives on every rank, whatever a gradient
contains; that a failure on one rank is reported to all (`wire`); and that a step that does not
count leaves no trace. `ValueSumExchange` is the base of the two exchanges that sum values.
`HierarchicalExchange` sums inside each node, and exchanges the sums between nodes.
"""

from gradwire.torch.exchange.base import BucketExchange, ExchangeBase
from gradwire.torch.exchange.hierarchical import Confirmation, HierarchicalExchange
from gradwire.torch.exchange.router import ExchangeRouter, build

__all__ = [
    "BucketExchange",
    "Confirmation",
    "ExchangeBase",
    "ExchangeRouter",
    "HierarchicalExchange",
    "build",
]
