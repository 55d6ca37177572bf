"""Gradient compression for Horovod.

>>> optimizer = gradwire.torch.horovod.DistributedOptimizer(
...     optimizer, model.named_parameters(), codec=gradwire.topk(ratio=0.01)
... )

The training loop does not change. See `DistributedOptimizer` and ``docs/horovod.md``.
"""

from gradwire.report import ParameterReport, Report
from gradwire.torch.engine.handle import Handle
from gradwire.torch.engine.pairing import PairingWarning
from gradwire.torch.errors import ExchangeError, GradientError, UpdateError
from gradwire.torch.horovod.elastic import (
    ElasticState,
    broadcast_optimizer_state,
    broadcast_parameters,
)
from gradwire.torch.horovod.optimizer import DistributedOptimizer
from gradwire.torch.transport.horovod import LostRankError

__all__ = [
    "DistributedOptimizer",
    "ElasticState",
    "ExchangeError",
    "GradientError",
    "Handle",
    "LostRankError",
    "PairingWarning",
    "ParameterReport",
    "Report",
    "UpdateError",
    "broadcast_optimizer_state",
    "broadcast_parameters",
]
