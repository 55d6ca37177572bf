"""Memories: what happens to the part of a tensor that is not sent."""

from gradwire._part import Part
from gradwire.memory.none import NoMemory
from gradwire.memory.residual import Residual

__all__ = ["MEMORIES", "Memory", "NoMemory", "Residual"]

Memory = NoMemory | Residual
"""Any of the memories."""

MEMORIES: tuple[type[Part], ...] = (NoMemory, Residual)
"""All of them, for configurations to be read back."""
