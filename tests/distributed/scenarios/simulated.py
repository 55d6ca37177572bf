"""The same training as the simulated ranks of benches/accuracy and benches/diloco."""

from typing import Any

import torch
from torch.nn.parallel import DistributedDataParallel

import gradwire
from benches.accuracy.rules import EPOCHS
from benches.diloco.settings import Setting
from benches.harness.tasks import share_of_rate
from gradwire.schedule import Constant, WarmUp
from gradwire.torch import ddp, diloco
from gradwire.torch.optim import SGD, AdamW
from tests.benches.accuracy.toy import Plain, Toy

RATE = 0.01


def real(
    rank: int,
    world_size: int,
    preset: str | None,
    options: dict[str, Any],
    optimizer: str,
    ratios: tuple[float, ...],
    steps: int,
) -> dict[str, Any]:
    """Train with DDP; return parameters and buffers by name, and bytes per step."""
    task = Toy()
    model = DistributedDataParallel(task.model(0))
    made: torch.optim.Optimizer
    codec = None if preset is None else getattr(gradwire, preset)(**options)
    if codec is not None and codec.memory.updates:
        made = AdamW(model.parameters(), betas=(0.9, 0.999), weight_decay=0.01, fused=True)
    elif optimizer == "adamw":
        made = torch.optim.AdamW(
            model.parameters(), betas=(0.9, 0.999), weight_decay=0.01, fused=True
        )
    elif codec is not None and codec.memory.corrects:
        made = SGD(model.parameters(), lr=RATE, momentum=0.9)
    else:
        made = torch.optim.SGD(model.parameters(), lr=RATE, momentum=0.9)
    schedule = WarmUp(ratios) if ratios else Constant()
    handle = None if codec is None else ddp.attach(model, codec, optimizer=made, schedule=schedule)
    batches = task.batches(rank, world_size, 0)
    for step in range(steps):
        if handle is not None and step * EPOCHS % steps == 0:
            handle.epoch(step * EPOCHS // steps)
        for group in made.param_groups:
            group["lr"] = RATE * share_of_rate(step, steps)
        made.zero_grad()
        task.loss(model, next(batches)).backward()
        made.step()
    nbytes = None
    if handle is not None:
        nbytes = handle.report().wire_bytes
        handle.detach()
    state = {name: each.detach().numpy() for name, each in model.module.state_dict().items()}
    return {"state": state, "nbytes": nbytes, **evaluated(task, model.module)}


ACROSS = {
    "average": Setting(gradwire.topk(0.1), 3),
    "momentum": Setting(gradwire.sparseloco(), 2, beta1=0.9, outer_lr=0.7, outer_momentum=0.9),
    "streaming": Setting(
        gradwire.topk(0.1, quantize=gradwire.quantize.Codebook(2)),
        4,
        fragments=2,
        delay=3,
        mixing=None,
    ),
    "mixed": Setting(gradwire.dense(), 4, outer_lr=0.7, outer_momentum=0.9, delay=2, mixing=0.5),
}


def across(rank: int, world_size: int, way: str, steps: int) -> dict[str, Any]:
    """Train with DiLoCo; return shared parameters by name, and bytes per step."""
    task, setting = Plain(), ACROSS[way]
    model = task.model(0)
    inner = torch.optim.AdamW(model.parameters(), fused=True, **setting.adamw())
    batches = task.batches(rank, world_size, 0)
    with diloco.DiLoCo(
        model,
        setting.codec,
        optimizer=inner,
        inner_steps=setting.inner_steps,
        outer_lr=setting.outer_lr,
        outer_momentum=setting.outer_momentum,
        fragments=setting.fragments,
        delay=setting.delay,
        mixing=setting.mixing,
    ) as outer:
        for step in range(steps):
            for group in inner.param_groups:
                group["lr"] = setting.rate * share_of_rate(step, steps)
            inner.zero_grad()
            task.loss(model, next(batches)).backward()
            inner.step()
        nbytes = outer.report().wire_bytes
        with outer.shared():
            state = {name: each.numpy().copy() for name, each in model.state_dict().items()}
    return {"state": state, "nbytes": nbytes}


def evaluated(task: Toy, model: torch.nn.Module) -> dict[str, float]:
    """Return what the task measures."""
    model.eval()
    with torch.no_grad():
        return task.evaluate(model)
