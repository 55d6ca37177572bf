"""Packed activations under DDP."""

import copy
from typing import Any

import torch
from torch import nn

import gradwire
from gradwire.torch import activations
from tests.distributed.scenarios.common import attached, fingerprint


def training(rank: int, world_size: int) -> dict[str, Any]:
    """Train a few steps with 4 bits beside none: parameters, losses, and the share that is kept."""
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(64, 128), nn.GELU(), nn.LayerNorm(128), nn.Linear(128, 8))
    teacher = torch.randn(64, 8)
    found: dict[str, Any] = {}
    for bits in (None, 4):
        codec = gradwire.topk(ratio=0.2)
        with attached(copy.deepcopy(module), codec) as (model, handle):
            packing = activations.attach(model, bits, seed=rank) if bits else None
            optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
            random, losses = torch.Generator().manual_seed(rank), []
            for _ in range(60):
                x = torch.randn(128, 64, generator=random)
                loss = nn.functional.mse_loss(model(x), (x @ teacher / 8).tanh())
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                losses.append(float(loss.detach()))
            found[f"losses {bits}"] = losses
            found[f"parameters {bits}"] = fingerprint(model)
            if packing is not None:
                found["steps"] = handle.report().steps
                found["share"] = packing.report().packed_share
    return found
