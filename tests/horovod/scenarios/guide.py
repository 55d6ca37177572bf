"""The blocks of docs/horovod.md."""

import warnings
from typing import Any

import torch
from torch import nn

import gradwire
import gradwire.torch.horovod as gh
from tests.distributed.scenarios.common import fingerprint
from tests.docs.guides import execute, network


def page(rank: int, world_size: int) -> dict[str, Any]:
    """Run every block, as a reader would type them; return their number, and what was trained."""
    warnings.simplefilter("error", gh.PairingWarning)
    random = torch.Generator().manual_seed(rank)
    names: dict[str, Any] = {
        "gradwire": gradwire,
        "torch": torch,
        "loss": nn.functional.cross_entropy,
        "loader": [
            (torch.randn(8, 64, generator=random), torch.randint(10, (8,), generator=random))
            for _ in range(4)
        ],
        "epochs": 2,
    }
    trained = []

    def prepare(block: str) -> None:
        if "DistributedOptimizer(" in block:  # a model has one
            torch.manual_seed(rank if "broadcast_parameters(" in block else 0)
            names["model"] = network()
            trained.append(names["model"])

    count = execute("horovod", names, prepare)
    names["optimizer"].handle.detach()
    return {
        "count": count,
        "epoch": names["state"].epoch,
        "prints": list(map(fingerprint, trained)),
    }
