"""The process of one rank: a step of the method that each line on its standard input names."""

import functools
import json
import sys
import time
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.algorithms.ddp_comm_hooks import debugging_hooks
from torch.distributed.algorithms.ddp_comm_hooks.powerSGD_hook import powerSGD_hook
from torch.nn.parallel import DistributedDataParallel

import gradwire
from benches.harness.half import half_hook
from benches.joining import join, obey
from gradwire.quantize import BFloat16
from gradwire.torch import ddp

from .hooks import POWER_RANKS, SIDE, power_state

LAYERS = 25
NUMEL = LAYERS * SIDE**2
PAUSE = 0.05  # seconds for the queues of the link to run empty
BUCKET_MB = 2 * 4 * NUMEL // 2**20  # room for all of it


class _Give(torch.autograd.Function):
    """A loss whose gradients are given: the cheapest backward pass there is."""

    @staticmethod
    def forward(ctx: Any, gradients: tuple[Tensor, ...], *parameters: Tensor) -> Tensor:
        ctx.gradients = gradients
        return parameters[0].new_zeros(())

    @staticmethod
    def backward(ctx: Any, *_: Any) -> Any:
        return None, *ctx.gradients


class Layers(nn.Module):
    """Layers, and a loss that only they take part in."""

    def __init__(self, weights: Iterable[Tensor]) -> None:
        super().__init__()
        self.layers = nn.ParameterList(nn.Parameter(weight) for weight in weights)

    def forward(self, gradients: tuple[Tensor, ...]) -> Tensor:
        loss: Tensor = _Give.apply(gradients, *self.layers)
        return loss


# A model of that method, and what a rank sends of it in a step, as payload.
Method = tuple[DistributedDataParallel, Callable[[], float | None]]
CODECS: dict[str, Callable[[], gradwire.Codec]] = {
    "gradwire topk, 0.01": lambda: gradwire.topk(ratio=0.01),
    "gradwire topk, 0.001": lambda: gradwire.topk(ratio=0.001),
    "gradwire topk bf16, 0.001": lambda: gradwire.topk(ratio=0.001, quantize=BFloat16()),
    "gradwire sidco, 0.001": lambda: gradwire.sidco(ratio=0.001),
}


@functools.cache
def _weights() -> Tensor:
    """Return the weights of all models: nobody looks at them, so they share them."""
    return torch.zeros(LAYERS, SIDE, SIDE)


def new_model() -> DistributedDataParallel:
    """Return the layers in one bucket."""
    return DistributedDataParallel(
        Layers(_weights()), bucket_cap_mb=BUCKET_MB, gradient_as_bucket_view=True, init_sync=False
    )


def methods() -> Iterator[tuple[str, Method]]:
    dense = 4.0 * NUMEL  # a ring of two: half of it to reduce, half to gather
    model = new_model()
    model.register_comm_hook(None, debugging_hooks.noop_hook)
    yield "no exchange", (model, lambda: None)
    yield "none", (new_model(), lambda: dense)
    model = new_model()
    model.register_comm_hook(None, half_hook)
    yield "torch bf16 hook", (model, lambda: dense / 2)
    for rank in POWER_RANKS:
        model = new_model()
        model.register_comm_hook(power_state(None, rank), powerSGD_hook)
        factors = 4.0 * LAYERS * 2 * SIDE * rank
        yield f"torch PowerSGD, rank {rank}", (model, functools.partial(float, factors))
    for name, make in CODECS.items():
        model = new_model()
        handle = attach(model, make())
        yield name, (model, functools.partial(_sent, handle))


def attach(model: DistributedDataParallel, codec: gradwire.Codec) -> ddp.Handle:
    """Attach a codec without an optimizer: there is none, so none can be checked."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ddp.PairingWarning)
        return ddp.attach(model, codec)


def _sent(handle: ddp.Handle) -> float:
    return handle.report().wire_bytes


def step(model: DistributedDataParallel, gradients: tuple[Tensor, ...]) -> dict[str, float]:
    """Return the seconds of a backward pass with its exchange, and those of all its threads."""
    model.zero_grad()
    loss = model(gradients)
    time.sleep(PAUSE)
    dist.barrier()
    began, worked = time.perf_counter(), time.process_time()
    loss.backward()
    return {"seconds": time.perf_counter() - began, "cpu": time.process_time() - worked}


def gradients() -> tuple[Tensor, ...]:
    # Heavy tails, drawn fast: a normal variable times an exponential one.
    return tuple(torch.randn(SIDE, SIDE).mul_(torch.empty(SIDE, SIDE).exponential_())
                 for _ in range(LAYERS))  # fmt: skip


Step = Callable[[DistributedDataParallel, tuple[Tensor, ...]], dict[str, float]]


class _Steps:
    """What the parent can ask for: a step of a method."""

    def __init__(
        self, step: Step, given: tuple[Tensor, ...], methods: Mapping[str, Method]
    ) -> None:
        self._step, self._given, self._methods = step, given, methods

    def step(self, method: str) -> dict[str, float | None]:
        model, nbytes = self._methods[method]
        return {**self._step(model, self._given), "nbytes": nbytes()}


def serve(
    setup: dict[str, Any],
    draw: Callable[[], tuple[Tensor, ...]],
    methods: Callable[[], Iterator[tuple[str, Method]]],
    numel: int,
    step: Step = step,
    settle: Mapping[str, int] | None = None,
) -> None:
    """Join the other ranks, and run a step of each method that a line of standard input names.

    Before the first, each method makes three steps, or as many as ``settle`` has for it.
    """
    say = join(setup, seconds=120)
    torch.manual_seed(setup["rank"])
    given = draw()
    everyone = dict(methods())
    for name, (model, _) in everyone.items():
        # DDP rebuilds its buckets, PowerSGD begins at the third step.
        for _ in range((settle or {}).get(name, 3)):
            step(model, given)
    say(methods=list(everyone), numel=numel)
    obey(_Steps(step, given, everyone), say)


if __name__ == "__main__":
    serve(json.loads(sys.argv[1]), gradients, methods, NUMEL)
