"""How often gradients are clipped: the average of all ranks, or each rank's own."""

from typing import Any

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import gradwire
import gradwire.torch.ddp

STEPS = 60


def _norms(rank: int, max_norm: float, *, own: bool) -> list[float]:
    """The norms before clipping, of the average or with gradwire of a rank's own gradients."""
    torch.manual_seed(0)
    layers = nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 4))
    teacher = torch.randn(32, 4)
    model = DistributedDataParallel(layers)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    handle = gradwire.torch.ddp.attach(model, gradwire.adam(), optimizer=optimizer) if own else None
    draw = torch.Generator().manual_seed(1 + rank)
    norms = []
    for _ in range(STEPS):
        inputs = torch.randn(8, 32, generator=draw)
        targets = (inputs @ teacher + 6.0 * torch.randn(8, 4, generator=draw)).argmax(1)
        optimizer.zero_grad()
        if own:
            with model.no_sync():
                nn.functional.cross_entropy(model(inputs), targets).backward()
        else:
            nn.functional.cross_entropy(model(inputs), targets).backward()
        norms.append(float(nn.utils.clip_grad_norm_(model.parameters(), max_norm)))
        optimizer.step()
    if handle is not None:
        handle.detach()
    return norms


def clipped(rank: int, world_size: int) -> dict[str, Any]:
    """The shares of steps that are clipped, and by how much a rank's own norms are larger."""
    plain = _norms(rank, float("inf"), own=False)
    limit = sorted(plain)[int(0.6 * STEPS)]  # of the first, which clips 40 % of the steps

    def share(norms: list[float], most: float) -> float:
        return sum(each > most for each in norms) / len(norms)

    mine = _norms(rank, limit, own=True)
    ratio = sum(mine[:10]) / sum(plain[:10])  # as a short run shows it
    return {
        "average": share(_norms(rank, limit, own=False), limit),
        "own": share(mine, limit),
        "ratio": ratio,
        "adjusted": share(_norms(rank, ratio * limit, own=True), ratio * limit),
    }
