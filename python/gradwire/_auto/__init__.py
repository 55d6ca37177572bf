"""Decides from measured steps how a model is averaged. Nothing here needs torch or reads a clock.

`gradwire.torch.auto` measures, and asks a `Decider`: see ``docs/auto.md``.
"""

from gradwire._auto.decider import SETTINGS, SETTLING, Decider, Setting, fastest

__all__ = ["SETTINGS", "SETTLING", "Decider", "Setting", "fastest"]
