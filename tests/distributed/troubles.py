"""Ranks that raise or die in the middle of a backward pass, and what they tell each other."""

import os
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from gradwire.torch.transport.store import Store
from tests.distributed.scenarios.common import network


class Trouble(torch.autograd.Function):
    """Does something bad in the middle of the backward pass."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, trouble: Callable[[], None]) -> torch.Tensor:
        ctx.trouble = trouble
        return x.clone()

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, None]:
        ctx.trouble()
        return gradient, None


class Troubled(torch.nn.Module):
    """A network that can be told to fail in its backward pass, between its buckets."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = torch.nn.ModuleList(network())
        self.trouble: Callable[[], None] = lambda: None

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for index, layer in enumerate(self.layers):
            x = layer(x)
            if index == 2:
                x = Trouble.apply(x, self.trouble)
        return x


def die() -> None:
    os._exit(7)


def stay() -> None:
    """Until the other rank has its error: it is to see silence, and not a closed connection."""
    try:
        told().wait(["seen"], 20 * patience())
    finally:
        die()


def patience() -> timedelta:
    """After which collectives give up: set when the ranks began, on a machine as busy as then."""
    group: Any = dist.group.WORLD
    given: timedelta = group._get_backend(torch.device("cpu")).options._timeout
    return given


def told() -> Store:
    """What ranks tell each other without a collective."""
    store: Store = dist.distributed_c10d._get_default_store()
    return store


def fail() -> None:
    raise ArithmeticError("trouble in the backward pass")
