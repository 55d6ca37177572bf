"""The same training as the simulated ranks of benches/accuracy."""

from typing import Any

import torch
from torch.nn.parallel import DistributedDataParallel
from torch.optim import SGD, AdamW

import gradwire
from benches.accuracy.run import EPOCHS
from benches.harness.tasks import share_of_rate
from gradwire.schedule import Constant, WarmUp
from gradwire.torch import ddp
from tests.benches.accuracy.toy import Toy

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


def evaluated(task: Toy, model: torch.nn.Module) -> dict[str, float]:
    """Return what the task measures."""
    model.eval()
    with torch.no_grad():
        return task.evaluate(model)
