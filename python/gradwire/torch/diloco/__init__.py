"""Training across sites: DiLoCo and Streaming DiLoCo with compressed pseudo-gradients.

>>> outer = diloco.DiLoCo(model, gradwire.sparseloco(), optimizer=optimizer)

The training loop does not change, and the model is a plain module. With a `Membership`, ranks come
and go. See ``docs/diloco.md``.
"""

from gradwire.torch.diloco.membership import Membership
from gradwire.torch.diloco.trainer import DiLoCo, DiLoCoReport, sparseloco
from gradwire.torch.errors import MembershipError

__all__ = ["DiLoCo", "DiLoCoReport", "Membership", "MembershipError", "sparseloco"]
