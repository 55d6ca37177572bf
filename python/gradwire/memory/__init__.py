"""Memories: what happens to the part of a tensor that is not sent."""

from gradwire._part import Part
from gradwire.memory.low_pass import LowPass
from gradwire.memory.momentum_correction import MomentumCorrection
from gradwire.memory.none import NoMemory
from gradwire.memory.residual import Residual

__all__ = ["MEMORIES", "LowPass", "Memory", "MomentumCorrection", "NoMemory", "Residual"]

Memory = NoMemory | Residual | LowPass | MomentumCorrection
"""Any memory."""

MEMORIES: tuple[type[Part], ...] = (NoMemory, Residual, LowPass, MomentumCorrection)
"""All memories, for reading configurations."""
