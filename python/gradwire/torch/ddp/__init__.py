"""Gradient compression for DistributedDataParallel.

>>> model = torch.nn.parallel.DistributedDataParallel(model)
>>> handle = gradwire.torch.ddp.attach(model, gradwire.topk(ratio=0.01))

The training loop does not change. See `attach` and ``docs/ddp.md``.
"""

from gradwire.report import ParameterReport, Report
from gradwire.torch.ddp.attachment import attach
from gradwire.torch.engine.handle import Handle
from gradwire.torch.engine.pairing import PairingWarning
from gradwire.torch.errors import ExchangeError, GradientError, UpdateError

__all__ = [
    "ExchangeError",
    "GradientError",
    "Handle",
    "PairingWarning",
    "ParameterReport",
    "Report",
    "UpdateError",
    "attach",
]
