"""Each rank clips its own gradients, which are larger than their average: see docs/ddp.md."""

import contextlib

import pytest
import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import gradwire
import gradwire.torch.ddp
from tests.distributed.ranks import on

STEPS = 60


def norms(rank, max_norm, own):
    """The norms before clipping, of the average or with gradwire of a rank's own gradients."""
    torch.manual_seed(0)
    layers = nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 4))
    teacher, found = torch.randn(32, 4), []
    model = DistributedDataParallel(layers)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    draw = torch.Generator().manual_seed(1 + rank)
    with contextlib.ExitStack() as stack:
        if own:
            handle = gradwire.torch.ddp.attach(model, gradwire.adam(), optimizer=optimizer)
            stack.enter_context(handle)
        for _ in range(STEPS):
            inputs = torch.randn(8, 32, generator=draw)
            targets = (inputs @ teacher + 6.0 * torch.randn(8, 4, generator=draw)).argmax(1)
            optimizer.zero_grad()
            with model.no_sync() if own else contextlib.nullcontext():
                nn.functional.cross_entropy(model(inputs), targets).backward()
            found.append(float(nn.utils.clip_grad_norm_(model.parameters(), max_norm)))
            optimizer.step()
    return found


@pytest.mark.full
@on("ranks")
def test_the_same_limit_clips_more_steps_and_an_adjusted_one_as_many(rank):
    plain = norms(rank, float("inf"), own=False)
    limit = sorted(plain)[int(0.6 * STEPS)]  # of the first, which clips 40 % of the steps

    def share(found, most):
        return sum(each > most for each in found) / len(found)

    mine = norms(rank, limit, own=True)
    average = share(norms(rank, limit, own=False), limit)
    assert share(mine, limit) > 1.5 * average, "of each rank's own gradients"
    ratio = sum(mine[:10]) / sum(plain[:10])  # as a short run shows it
    assert 1.1 < ratio < 3**0.5 + 0.1, "at most the root of the number of ranks"
    adjusted = share(norms(rank, ratio * limit, own=True), ratio * limit)
    assert adjusted == pytest.approx(average, abs=0.2)
