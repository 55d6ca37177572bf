"""Packed activations under DDP with compressed gradients."""

import copy

import pytest
import torch
from torch import nn

import gradwire
from tests.distributed.ranks import LazyModule, alike, on
from tests.distributed.scenarios.common import attached, fingerprint

activations = LazyModule("gradwire.torch.activations")


@on("two")
def test_replicas_stay_equal_and_losses_fall_as_without_packing(rank):
    """With 4 bits beside none."""
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(64, 128), nn.GELU(), nn.LayerNorm(128), nn.Linear(128, 8))
    teacher, losses, prints = torch.randn(64, 8), [], []
    for bits in (None, 4):
        with attached(copy.deepcopy(module), gradwire.topk(ratio=0.2)) as (model, handle):
            packing = activations.attach(model, bits, seed=rank) if bits else None
            optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
            random = torch.Generator().manual_seed(rank)
            losses.append([])
            for _ in range(60):
                x = torch.randn(128, 64, generator=random)
                loss = nn.functional.mse_loss(model(x), (x @ teacher / 8).tanh())
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                losses[-1].append(float(loss.detach()))
            prints.append(alike(fingerprint(model)))
            if bits:
                assert handle.report().steps == 60
                assert 0.14 < packing.report().packed_share < 0.165
    assert prints[0] != prints[1]
    plain, packed = losses
    assert packed[0] == plain[0], "forward is exact"
    assert sum(packed[-10:]) == pytest.approx(sum(plain[-10:]), rel=0.05)
    assert sum(packed[-10:]) < 0.7 * sum(packed[:10])
