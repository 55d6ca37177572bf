"""Carries out the exchange of a bucket, from the hook's call to the average; one file each.

`BucketExchange` is the interface to the pipeline. `RankExchange` takes each bucket through its
states, and an exchange is a class of `Transfer` with what it does there. It guarantees that each
task starts the same collectives on every rank, whatever a gradient contains; that a failure on one
rank is reported to all (`wire`); and that a step that does not count leaves no trace.
`HierarchicalExchange` sums inside each node, and exchanges the sums between nodes.
"""

from gradwire.torch.exchange.base import BucketExchange, RankExchange
from gradwire.torch.exchange.router import build

__all__ = [
    "BucketExchange",
    "RankExchange",
    "build",
]
