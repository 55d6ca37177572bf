"""Decides from measured figures how each bucket is averaged. Nothing here needs torch or a clock.

`gradwire.torch.ddp.attach` with ``"auto"`` measures, and asks a `Decider`: see
``docs/auto-inside.md``.
"""

from gradwire._auto.decider import Decider, Evidence
from gradwire._auto.model import Model
from gradwire._auto.setting import BF16, FP32, OWNERS_FROM, Plan, Setting, describe, ladder
from gradwire._auto.step_stats import Figures, combined

__all__ = [
    "BF16",
    "FP32",
    "OWNERS_FROM",
    "Decider",
    "Evidence",
    "Figures",
    "Model",
    "Plan",
    "Setting",
    "combined",
    "describe",
    "ladder",
]
