"""Carries out the exchange of a bucket, from the hook's call to the average; one file each.

`Exchanging` is the interface to the worker, and `Exchange` the base of what goes between ranks. It
guarantees that each job makes the same collectives on every rank, whatever a gradient contains;
that a failure on one rank is reported to all; and that a step that does not count leaves no trace.
`Summed` is the base of the two exchanges that sum values on the wire. `Nested` does an exchange
between nodes, of what it has summed inside each of them.
"""

from gradwire.torch.reducer.exchange.base import Exchange
from gradwire.torch.reducer.exchange.build import build
from gradwire.torch.reducer.exchange.interface import Exchanging
from gradwire.torch.reducer.exchange.nested import Nested
from gradwire.torch.reducer.exchange.outcome import Confirmation
from gradwire.torch.reducer.exchange.routed import Changing, Routed

__all__ = [
    "Changing",
    "Confirmation",
    "Exchange",
    "Exchanging",
    "Nested",
    "Routed",
    "build",
]
