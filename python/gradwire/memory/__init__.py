"""Memories keep the part of a tensor that is not sent."""

from gradwire._part import own_parts
from gradwire.memory.base import Memory as Memory

# One line each, in the order in which they are listed: importing a class registers it.
# isort: off
from gradwire.memory.base import NoMemory as NoMemory
from gradwire.memory.base import Residual as Residual
from gradwire.memory.base import LowPass as LowPass
from gradwire.memory.corrections import MomentumCorrection as MomentumCorrection
from gradwire.memory.corrections import AdamCorrection as AdamCorrection
from gradwire.memory.corrections import Estimate as Estimate
# isort: on

MEMORIES: tuple[type[Memory], ...] = own_parts(Memory)  #: all memories

__all__ = ["Memory", *(part.__name__ for part in MEMORIES)]
