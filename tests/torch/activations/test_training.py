"""Training in 2 bits: where it ends beside float, and beside ranges that reach all values."""

from typing import Literal

import pytest
import torch
from torch import nn

from gradwire.quantize import Affine
from gradwire.torch import activations, weights

load_digits = pytest.importorskip("sklearn.datasets").load_digits


def accuracy(fit: Literal["sawb", "zero"] | None, clip: float) -> float:
    """Of three convolutions on 500 held-out digits, in percent; float without a fit."""
    x, y = map(torch.tensor, load_digits(return_X_y=True))
    order = torch.randperm(len(x), generator=torch.Generator().manual_seed(0))
    x, y = x[order].view(-1, 1, 8, 8).float() / 16, y[order]
    torch.manual_seed(0)
    model = nn.Sequential()
    for before, width in ((1, 16), (16, 32), (32, 64)):
        convolution = nn.Conv2d(before, width, 3, 1 + (before > 1), 1, bias=False)
        act = activations.PACT(2, clip) if fit else nn.ReLU()
        model.extend([convolution, nn.BatchNorm2d(width), act])
    model.extend([nn.Flatten(), nn.Linear(256, 10)])
    if fit:
        weights.straight_through(model, {"[036].*": Affine(2, None, fit=fit)})
    optimizer = torch.optim.Adam(activations.parameter_groups(model, 0.0))
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 4e-3, 10 * 40)
    for _ in range(10):
        for batch in (torch.randperm(1297) + 500).split(32)[:40]:
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(x[batch]), y[batch]).backward()
            optimizer.step()
            schedule.step()
    return 100 * float((model.eval()(x[:500]).argmax(1) == y[:500]).float().mean())


@pytest.mark.full
def test_two_bits_by_sawb_and_pact_plus_come_near_float_and_ranges_do_not():
    floats, clipped, ranges = accuracy(None, 4.0), accuracy("sawb", 4.0), accuracy("zero", 16.0)
    assert floats > 98.0
    assert clipped > floats - 2.0
    assert clipped > ranges + 1.0, (floats, clipped, ranges)
