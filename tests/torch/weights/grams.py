"""Gram matrices by plain code, and models to see them in."""

import math
from typing import Any, TypeVar

import numpy as np
import torch
from torch import nn

from gradwire.torch.weights import Calibration
from gradwire.weights import Gram

Module = TypeVar("Module", bound=nn.Module)


def gram_of(*inputs: torch.Tensor, width: int | None = None) -> Gram:
    """The Gram matrix of rows, by plain code."""
    x = torch.cat([each.reshape(-1, width or each.shape[-1]) for each in inputs])
    rows = x.detach().double().numpy()
    return Gram(rows.T @ rows, len(rows), rows.mean(0))


def stacked(*grams: Gram) -> Gram:
    """Of groups, where zeros count for the inputs that one has fewer than another."""
    count = max(each.count for each in grams)
    mean = np.stack([each.mean * each.count / count for each in grams])
    return Gram(np.stack([each.matrix for each in grams]), count, mean)


def assert_same(found: Gram, expected: Gram, tolerance: float = 1e-5) -> None:
    assert found.count == expected.count
    assert found.matrix.shape == expected.matrix.shape
    scale = np.abs(expected.matrix).max()
    np.testing.assert_allclose(found.matrix, expected.matrix, rtol=0, atol=tolerance * scale)
    np.testing.assert_allclose(found.mean, expected.mean, rtol=0, atol=tolerance * np.sqrt(scale))
    assert np.array_equal(found.matrix, found.matrix.swapaxes(-1, -2))


def assert_equal(found: Gram, expected: Gram) -> None:
    """Bit for bit."""
    assert found.count == expected.count
    assert np.array_equal(found.matrix, expected.matrix)
    assert np.array_equal(found.mean, expected.mean)


def seeded(model: Module) -> Module:
    generator = torch.Generator().manual_seed(1)
    for each in model.parameters():
        with torch.no_grad():
            each.copy_(torch.randn(each.shape, generator=generator) / math.sqrt(each.shape[-1]))
    return model


def draw(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)) + 0.3


def mlp() -> nn.Sequential:
    return seeded(nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 8), nn.Linear(8, 3)))


class Captured(nn.Module):
    """A model, and what its modules were called with."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.calls: dict[str, Any] = {}
        for name, module in model.named_modules():
            module.register_forward_pre_hook(
                lambda _, args, name=name: self.calls.setdefault(name, []).extend(args[:1])
            )


def seen_of(model, *batches, **options):
    with Calibration(model, **options) as seen, torch.no_grad():
        for each in batches:
            model(each)
    return seen
