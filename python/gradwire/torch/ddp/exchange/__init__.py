"""What happens to one bucket between the hook's call and its average: a file for each exchange.

`Exchange` is what all of them promise the worker: each job makes the same collectives on every
rank, whatever a gradient holds; a failure on one rank is told to all; nothing outlives a step that
does not count. `AllReduced` is what the two have in common that add values up on the wire.
"""

from gradwire.torch.ddp.exchange.base import Exchange
from gradwire.torch.ddp.exchange.build import build

__all__ = ["Exchange", "build"]
