"""Page faults of training steps, with and without compression."""

import resource
from typing import Any

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.optim import AdamW

import gradwire.torch.ddp
from gradwire.presets import PRESETS

STEPS, COUNTED = 40, 10


def wide() -> nn.Sequential:
    """A network of 1.05 million weights."""
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(512, 1024), nn.GELU(), nn.Linear(1024, 512))


def taken(rank: int, preset: str | None, options: dict[str, Any]) -> int:
    """Page faults of some steps in the steady state; of DDP alone without a preset."""
    module = wide()
    model = DistributedDataParallel(module)
    optimizer = AdamW(module.parameters(), lr=1e-3)
    handle = None
    if preset is not None:
        codec = PRESETS[preset].build(**options)
        handle = gradwire.torch.ddp.attach(model, codec, optimizer=optimizer)
    random = torch.Generator().manual_seed(rank)
    inputs, targets = (torch.randn(32, 512, generator=random) for _ in range(2))
    before = 0
    for step in range(STEPS + COUNTED):
        if step == STEPS:
            before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
        loss = nn.functional.mse_loss(model(inputs), targets)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    faults = resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before
    if handle is not None:
        handle.detach()
    return faults


def beside_dense(rank: int, world_size: int, preset: str, options: dict[str, Any]) -> list[int]:
    """Page faults of as many steps without compression, with it, and without again."""
    return [taken(rank, each, options) for each in (None, preset, None)]
