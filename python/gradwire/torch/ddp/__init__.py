"""Gradient compression for DistributedDataParallel.

>>> model = torch.nn.parallel.DistributedDataParallel(model)
>>> handle = gradwire.torch.ddp.attach(model, gradwire.topk(ratio=0.01))

The training loop does not change. See `attach` and ``docs/ddp.md``.
"""

from typing import TYPE_CHECKING, Any

from gradwire.torch.ddp.attachment import attach
from gradwire.torch.engine.handle import Handle
from gradwire.torch.engine.pairing import PairingWarning
from gradwire.torch.errors import ExchangeError, GradientError, UpdateError

if TYPE_CHECKING:
    from gradwire.report import ParameterReport, Report

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


def __getattr__(name: str) -> Any:
    if name in ("ParameterReport", "Report"):  # the classes are needed only where reports are
        from gradwire import report

        return getattr(report, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
