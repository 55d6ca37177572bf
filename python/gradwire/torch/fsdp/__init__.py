"""Gradient compression for FSDP2: the level between nodes of hybrid sharding (HSDP).

>>> for block in model.layers:
...     fully_shard(block, mesh=mesh["shard"])
>>> fully_shard(model, mesh=mesh["shard"])
>>> handle = gradwire.torch.fsdp.attach(model, gradwire.topk(ratio=0.01), mesh=mesh["replicate"])

Parameters are sharded inside a node, and replicated between nodes. See `attach` and
``docs/fsdp.md``.
"""

from gradwire.report import ParameterReport, Report
from gradwire.torch.engine.handle import Handle
from gradwire.torch.engine.pairing import PairingWarning
from gradwire.torch.errors import ExchangeError, GradientError, UpdateError
from gradwire.torch.fsdp.attachment import attach

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
