"""Page faults of training steps, with and without compression."""

import resource
import statistics
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


def faults_of_a_step(rank: int, preset: str | None, options: dict[str, Any]) -> int:
    """Page faults of a step in the steady state (the median of some), without a preset of DDP's.

    A median, because what is taken anew is taken in each step, and what grows for once, such as a
    frame longer than any before, costs one step some hundreds.
    """
    module = wide()
    model = DistributedDataParallel(module)
    optimizer = AdamW(module.parameters(), lr=1e-3)
    handle = None
    if preset is not None:
        codec = PRESETS[preset].build(**options)
        handle = gradwire.torch.ddp.attach(model, codec, optimizer=optimizer)
    random = torch.Generator().manual_seed(rank)
    inputs, targets = (torch.randn(32, 512, generator=random) for _ in range(2))
    faults = []
    for _ in range(STEPS + COUNTED):
        before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
        loss = nn.functional.mse_loss(model(inputs), targets)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        faults.append(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
    if handle is not None:
        handle.detach()
    return int(statistics.median(faults[STEPS:]))


def beside_dense(rank: int, world_size: int, preset: str, options: dict[str, Any]) -> list[int]:
    """Page faults of a step without compression, with it, and without again."""
    return [faults_of_a_step(rank, each, options) for each in (None, preset, None)]
