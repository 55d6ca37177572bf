"""Links that are measured on process groups."""

import copy
import dataclasses
import itertools
import time
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import gradwire
from gradwire.torch import cost
from tests.distributed.scenarios.common import attached, gradients_of


def links(rank: int, world_size: int) -> dict[str, Any]:
    """Measure the default group and another one; try a group of one rank."""
    found = cost.measure_link(seconds=0.05)
    other: Any = dist.new_group(list(range(world_size)))
    again = cost.measure_link(other, seconds=0.05)
    alone: Any = [dist.new_group([each]) for each in range(world_size)][rank]
    told = []
    for group, seconds in ((alone, 1.0), (None, 0.0), (None, -1.0)):
        try:
            cost.measure_link(group, seconds=seconds)
        except ValueError as error:
            told.append(str(error))
    return {"found": found, "again": again, "told": told}


def workload(rank: int, world_size: int) -> dict[str, Any]:
    """Measure a model with a codec; compare with the buckets that its hook would get."""
    shapes = [(64, 40), (40, 300), (300, 300), (300, 300), (300, 8)]
    torch.manual_seed(0)
    layers = nn.Sequential(*[nn.Linear(*shape) for shape in shapes])
    x = torch.randn(5, 64)
    seen: list[int] = []

    def hook(state: object, bucket: Any) -> Any:
        seen.append(bucket.buffer().numel())
        future: torch.futures.Future[torch.Tensor] = torch.futures.Future()
        future.set_result(bucket.buffer())
        return future

    hook.__annotations__.clear()  # DDP insists that annotations, if there are any, are its own
    hooked = DistributedDataParallel(copy.deepcopy(layers), bucket_cap_mb=SMALL)
    hooked.register_comm_hook(None, hook)
    for _ in range(3):
        seen.clear()
        hooked(x).sum().backward()

    with attached(layers, gradwire.onebit(), bucket_cap_mb=SMALL) as (model, handle):
        model(x).sum().backward()
        before = gradients_of(model.module)
        steps = handle.step
        progress: list[tuple[str, float]] = []
        found = cost.measure_workload(
            model,
            lambda: model(x).sum().backward(),
            steps=3,
            optimizer=1.0,
            progress=lambda *what: progress.append(what),
        )
        after = gradients_of(model.module)
        kept = all(np.array_equal(after[name], grad) for name, grad in before.items())
        model.zero_grad()
        model(x).sum().backward()  # the hooks are gone, and steps are exchanged again
        exchanged = handle.step - steps
        told = []
        alone = cost.measure_workload(layers, lambda: layers(x).sum().backward(), steps=1)
        others: list[Any] = [hook, nn.ReLU(), layers]
        for other in others:
            try:
                cost.measure_workload(other, lambda: None)
            except (TypeError, ValueError) as error:
                told.append(str(error))
    return {
        "found": found,
        "seen": seen,
        "kept": kept,
        "exchanged": exchanged,
        "alone": alone,
        "told": told,
        "progress": progress,
    }


def slow_in_turn(rank: int, world_size: int) -> gradwire.cost.Workload:
    """Measure a model whose ranks are slow one after the other."""
    with attached(nn.Linear(4, 4), gradwire.onebit()) as (model, _):
        made = itertools.count()

        def step() -> None:
            if next(made) % world_size == rank:
                time.sleep(SLOW)
            model(torch.ones(4)).sum().backward()

        return cost.measure_workload(model, step, steps=3)


SLOW = 0.2
SMALL = 0.1
SIDE, LAYERS = 256, 3


def bytes_sent(rank: int, world_size: int) -> dict[str, tuple[float, float]]:
    """Return the bytes that a rank sends per step with each codec, and those of plain DDP."""
    found = {}
    for name, make in codecs().items():
        torch.manual_seed(0)
        layers = [nn.Linear(SIDE, SIDE, bias=False) for _ in range(LAYERS)]
        with attached(nn.Sequential(*layers), make) as (model, handle):
            for step in range(10):
                if step == 6:  # limits of slots have settled
                    handle.metrics(reset=True)
                torch.manual_seed(world_size * step + rank)
                model(torch.randn(16, SIDE)).square().mean().backward()
            figures = handle.metrics()
            found[name] = figures["wire_bytes"], figures["dense_wire_bytes"]
    return found


def codecs() -> dict[str, gradwire.Codec]:
    """Return a codec for each exchange, and one whose values have 16 bits."""
    return {
        "topk": gradwire.topk(ratio=0.05),
        "onebit": gradwire.onebit(),
        "dense": gradwire.dense(exchange=gradwire.exchange.AllReduce()),
        "randomk": gradwire.randomk(ratio=0.1),
        "scalecom": gradwire.scalecom(ratio=0.05),
        "half": gradwire.scalecom(ratio=0.05, quantize=gradwire.quantize.BFloat16()),
        "scattered": dataclasses.replace(
            gradwire.topk(ratio=0.05), exchange=gradwire.exchange.ReduceScatter()
        ),
        "quantized": gradwire.onebit(exchange=gradwire.exchange.QuantizedAllReduce()),
        "levels": gradwire.qsgd(exchange=gradwire.exchange.QuantizedAllReduce()),
    }
