"""Second moments that go from dense training to a codec and back, on several ranks."""

from typing import Any

import numpy as np
import torch
from torch.nn.parallel import DistributedDataParallel
from torch.optim import AdamW

import gradwire
import gradwire.torch.ddp
from tests.distributed.scenarios.common import SHAPES, Given

BETA2 = 0.9
COMMON = {"a": 0.0, "b": 1.0, "c": 4.0}
"""The part of a gradient that all ranks have in common; noise of variance 1 comes to it."""


def gradients(rank: int, step: int) -> dict[str, torch.Tensor]:
    random = torch.Generator().manual_seed(1000 * step + rank)
    return {
        name: COMMON.get(name, 0.0) + torch.randn(shape, generator=random)
        for name, shape in SHAPES.items()
    }


def there_and_back(rank: int, world_size: int) -> dict[str, Any]:
    """Train dense, with a codec, and dense again; tell second moments by what should be."""
    del world_size
    module = Given()
    optimizer = AdamW(module.parameters(), lr=0.0, betas=(0.9, BETA2))
    model = DistributedDataParallel(module)
    parameters = dict(module.named_parameters())

    def train(steps: range) -> None:
        for step in steps:
            optimizer.zero_grad()
            model(gradients(rank, step)).backward()
            optimizer.step()

    def dense(state: Any) -> dict[str, float]:
        return {name: float(state[each]["exp_avg_sq"].mean()) for name, each in parameters.items()}

    train(range(60))
    found: dict[str, Any] = {"dense": dense(optimizer.state)}
    codec = gradwire.adam(0.1, beta2=BETA2)
    handle = gradwire.torch.ddp.attach(model, codec, optimizer=optimizer, min_numel=1)
    for kind, steps in {"taken": range(60, 61), "corrected": range(61, 76)}.items():
        train(steps)
        (saved,) = handle.state_dict().values()
        found[kind] = {name: float(each.mean()) for name, each in saved["second_moment"].items()}
    train(range(76, 120))
    held = optimizer.state_dict()["state"]
    found["saved"] = {
        name: float(held[at]["exp_avg_sq"].mean()) for at, name in enumerate(parameters)
    }
    found["steps"] = {float(each["step"]) for each in held.values()}
    found["kept"] = len(optimizer.state)
    handle.detach()
    found["detached"] = dense(optimizer.state)
    found["bits"] = {
        name: np.asarray(optimizer.state[each]["exp_avg_sq"]).tobytes()
        for name, each in parameters.items()
    }
    train(range(120, 122))
    return found
