"""Carries out the exchange of a bucket, from the hook's call to the average; one file each.

`Exchange` is the interface to the worker. It guarantees that each job makes the same collectives on
every rank, whatever a gradient contains; that a failure on one rank is reported to all; and that a
step that does not count leaves no trace. `Summed` is the base of the two exchanges that sum values
on the wire.
"""

from gradwire.torch.reducer.exchange.base import Exchange
from gradwire.torch.reducer.exchange.build import build
from gradwire.torch.reducer.exchange.routed import Routed

__all__ = ["Exchange", "Routed", "build"]
