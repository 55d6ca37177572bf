"""Second moments of averages and of each rank's own gradients: one becomes the other."""

import pytest
import torch
from torch.nn.parallel import DistributedDataParallel
from torch.optim import AdamW

import gradwire
import gradwire.torch.ddp
from tests.distributed.ranks import alike, on
from tests.distributed.scenarios.common import SHAPES, Given, bits

BETA2 = 0.9
COMMON = {"a": 0.0, "b": 1.0, "c": 4.0}
"""The part of a gradient that all ranks have in common; noise of variance 1 comes to it."""


@on("ranks")
def test_second_moments_are_of_what_is_squared_there(rank, size):
    """Train dense, with a codec, and dense again."""
    module = Given()
    optimizer = AdamW(module.parameters(), lr=0.0, betas=(0.9, BETA2))
    model = DistributedDataParallel(module)
    parameters = dict(module.named_parameters())

    def train(steps):
        for step in steps:
            random = torch.Generator().manual_seed(1000 * step + rank)
            optimizer.zero_grad()
            gradients = {
                name: COMMON.get(name, 0.0) + torch.randn(shape, generator=random)
                for name, shape in SHAPES.items()
            }
            model(gradients).backward()
            optimizer.step()

    def check(moments, noise, rel=0.35):
        for name, common in COMMON.items():
            assert float(moments[name].mean()) == pytest.approx(common**2 + noise, rel=rel)

    def dense_moments():
        return {name: optimizer.state[each]["exp_avg_sq"] for name, each in parameters.items()}

    of_average, of_ranks = 1.0 / size, 1.0
    train(range(60))
    check(dense_moments(), of_average, rel=0.1)
    codec = gradwire.adam(0.1, beta2=BETA2)
    handle = gradwire.torch.ddp.attach(model, codec, optimizer=optimizer, min_numel=1)
    for noise, steps in ((of_average, range(60, 61)), (of_ranks, range(61, 76))):
        train(steps)
        (saved,) = handle.state_dict().values()
        check(saved["second_moment"], noise)
    train(range(76, 120))
    held = optimizer.state_dict()["state"]
    check({name: held[at]["exp_avg_sq"] for at, name in enumerate(parameters)}, of_average)
    assert {float(each["step"]) for each in held.values()} == {120.0}
    assert len(optimizer.state) == 1  # the scalar, which is sent dense
    handle.detach()
    check(dense_moments(), of_average)
    alike({name: bits(each) for name, each in dense_moments().items()})
    train(range(120, 122))
