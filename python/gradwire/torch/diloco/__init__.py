"""Training across sites: DiLoCo and Streaming DiLoCo with compressed pseudo-gradients.

>>> outer = diloco.DiLoCo(model, gradwire.sparseloco(), optimizer=optimizer)

The training loop does not change, and the model is a plain module. See ``docs/diloco.md``.
"""

from gradwire.torch.diloco.presets import sparseloco
from gradwire.torch.diloco.report import Report
from gradwire.torch.diloco.trainer import DiLoCo

__all__ = ["DiLoCo", "Report", "sparseloco"]
