"""Checkpoints in other places: torch.distributed.checkpoint, one file, another memory format."""

import copy
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.checkpoint.state_dict_loader import load
from torch.distributed.checkpoint.state_dict_saver import async_save, save
from torch.distributed.checkpoint.stateful import Stateful
from torch.nn.parallel import DistributedDataParallel
from torch.optim import AdamW

import gradwire
import gradwire.torch.ddp
from gradwire.schedule import Accordion, WarmUp
from gradwire.torch.checkpoint.format import Policy
from gradwire.torch.ddp import Handle
from tests.distributed.scenarios.common import (
    SMALL_BUCKETS,
    Given,
    attached,
    fingerprint,
    integers,
    network,
    plain,
    residuals,
    train,
)

SCHEDULES: dict[str, dict[str, Any]] = {
    "constant": {},
    "warm-up": {"schedule": WarmUp()},
    "accordion": {"schedule": Accordion(0.5, 0.05, interval=2)},
}


def _go(model: Any, handle: Handle, rank: int, epochs: range) -> None:
    for epoch in epochs:
        handle.epoch(epoch)
        train(model, rank, range(2 * epoch, 2 * epoch + 2))


def resume_by_dcp(rank: int, world_size: int, folder: str, schedule: str) -> dict[str, Any]:
    """Train 4 epochs; or save in each of the first 3, and go on from there."""
    codec = gradwire.dgc(ratio=0.05)
    options = SCHEDULES[schedule]
    with attached(network(), codec, options=options, bucket_cap_mb=SMALL_BUCKETS) as (
        model,
        handle,
    ):
        states = []
        for epoch in range(4):
            _go(model, handle, rank, range(epoch, epoch + 1))
            states.append(model.module.state_dict())
            states[-1] = {name: each.clone() for name, each in states[-1].items()}
            save({"gradwire": handle}, checkpoint_id=str(Path(folder) / str(epoch)))
        whole = (fingerprint(model), plain(handle.state_dict()))
    same = []
    for epoch in range(3):
        module = network(seed=99)
        module.load_state_dict(states[epoch])
        with attached(module, codec, options=options, bucket_cap_mb=SMALL_BUCKETS) as (
            model,
            handle,
        ):
            load({"gradwire": handle}, checkpoint_id=str(Path(folder) / str(epoch)))
            _go(model, handle, rank, range(epoch + 1, 4))
            same.append((fingerprint(model), plain(handle.state_dict())) == whole)
    return {"same": same, "stateful": isinstance(handle, Stateful)}


def resume_from_async_save(rank: int, world_size: int, folder: str) -> dict[str, bool]:
    """Train 6 steps, and write what there was after 3 while the last 3 go on; resume from it."""
    codec = gradwire.adam(ratio=0.05)
    group: Any = dist.new_group(backend="gloo")  # of the thread that writes
    seen: list[Any] = []
    kept: Any = None
    for resumed in (False, True):
        module = network(seed=99 if resumed else 0)
        model = DistributedDataParallel(module, bucket_cap_mb=SMALL_BUCKETS)
        optimizer = AdamW(model.parameters(), lr=0.01)
        with gradwire.torch.ddp.attach(model, codec, optimizer=optimizer) as handle:
            if resumed:
                module.load_state_dict(kept[0])
                optimizer.load_state_dict(kept[1])
                load({"gradwire": handle}, checkpoint_id=folder)
            else:
                train(model, rank, range(3), optimizer=optimizer)
                kept = copy.deepcopy((module.state_dict(), optimizer.state_dict()))
                written: Any = async_save(
                    {"gradwire": handle}, checkpoint_id=folder, process_group=group
                )
            train(model, rank, range(3, 6), optimizer=optimizer)
            if not resumed:
                written.result()
            seen.append((fingerprint(model), plain(handle.state_dict()), handle.step))
    dist.destroy_process_group(group)
    return {"same": seen[0] == seen[1], "steps": seen[0][2] == 6}


def save_by_dcp(rank: int, world_size: int, folder: str) -> dict[str, np.ndarray]:
    """Leave something in the residuals."""
    with attached(Given(), gradwire.topk(ratio=0.05)) as (model, handle):
        for step in range(3):
            model.zero_grad()
            model(integers(9, rank, step)).backward()
        save({"gradwire": handle}, checkpoint_id=folder)
        return residuals(handle)


def load_by_dcp(
    rank: int, world_size: int, folder: str, old_size: int, policy: Policy
) -> dict[str, Any]:
    """Load what another number of ranks has saved; then train a step to see that it goes on."""
    with attached(Given(), gradwire.topk(ratio=0.05)) as (model, handle):
        load({"gradwire": handle.resharded(old_size, policy)}, checkpoint_id=folder)
        left, step = residuals(handle), handle.step
        model(integers(9, rank, 3)).backward()
        return {"left": left, "step": step, "after": handle.step}


def gathered(rank: int, world_size: int, folder: str) -> dict[str, Any]:
    """One file for all ranks, written by each of them in turn, and by all."""
    options = {"schedule": Accordion(0.5, 0.05)}
    codec = gradwire.dgc(ratio=0.05)
    found: dict[str, Any] = {"same": [], "lengths": []}
    with attached(network(), codec, options=options) as (model, handle):
        train(model, rank, range(3))
        own = plain(handle.state_dict())
        written: list[int | None] = [None, *range(world_size)]
        for to in written:
            everything = handle.gathered_state_dict(to)
            found["lengths"].append(len(everything))
            if rank == (to or 0):
                torch.save(everything, Path(folder) / f"{to}.pt")
        try:
            handle.gathered_state_dict(world_size)
        except ValueError as error:
            found["refused"] = str(error)
    dist.barrier()
    for to in written:
        saved = torch.load(Path(folder) / f"{to}.pt", weights_only=True)
        with attached(network(), codec, options=options) as (_, handle):
            handle.load_state_dict(saved)
            found["same"].append(plain(handle.state_dict()) == own)
    return found


class Convolutions(nn.Module):
    """Weights of four dimensions, whose gradients the caller gives."""

    def __init__(self, memory_format: torch.memory_format) -> None:
        super().__init__()
        self.conv = nn.Conv2d(16, 24, 3)
        self.to(memory_format=memory_format)

    def forward(self, gradient: torch.Tensor) -> torch.Tensor:
        weight = self.conv.weight
        return (weight * gradient.to(weight.dtype)).sum() + self.conv.bias.sum()  # type: ignore[union-attr]


def memory_formats(rank: int, world_size: int) -> dict[str, bool]:
    """Save in one memory format and go on in the other."""
    codec = gradwire.topk(ratio=0.05, memory=gradwire.memory.MomentumCorrection(momentum=0.9))
    formats = {"contiguous": torch.contiguous_format, "channels_last": torch.channels_last}
    gradients = [
        torch.randn(24, 16, 3, 3, generator=torch.Generator().manual_seed(10 * step + rank))
        for step in range(6)
    ]
    saved, ends = {}, {}

    def make(name: str) -> DistributedDataParallel:
        return DistributedDataParallel(Convolutions(formats[name]))

    def go(model: nn.Module, steps: range) -> None:
        for step in steps:
            model.zero_grad()
            model(gradients[step]).backward()

    def end(model: Any, handle: Handle) -> Any:
        weight = model.module.conv.weight
        return weight.grad.contiguous().numpy().tobytes(), residuals(handle)[
            "conv.weight"
        ].tobytes()

    for name in formats:
        model = make(name)
        handle = gradwire.torch.ddp.attach(model, codec)
        go(model, range(3))
        saved[name] = handle.state_dict()
        go(model, range(3, 6))
        ends[name] = end(model, handle)
        handle.detach()
    found = {"equal": ends["contiguous"] == ends["channels_last"]}
    for source, target in (("contiguous", "channels_last"), ("channels_last", "contiguous")):
        model = make(target)
        handle = gradwire.torch.ddp.attach(model, codec)
        handle.load_state_dict(saved[source])
        go(model, range(3, 6))
        found[f"{source} to {target}"] = end(model, handle) == ends[source]
        handle.detach()
    return found


def merged(rank: int, world_size: int) -> dict[str, Any]:
    """Merge the states of all ranks, or of those that have one, beside what all of them hold."""
    module = network()
    optimizer = AdamW(module.parameters(), lr=0.01)
    options = {"optimizer": optimizer, "min_numel": 64}
    with attached(module, gradwire.adam(ratio=0.05), options=options) as (model, handle):
        train(model, rank, range(5), optimizer=optimizer)
        every = handle.gathered_state_dict(None)
        whole = handle.merged_state_dict()
        alone = handle.merged_state_dict({} if rank else handle.state_dict())
        same = []
        for kind, ranks in (("residual", 1), ("second_moment", world_size)):
            for name, values in whole["rank0"][kind].items():
                total = sum(each[kind][name].double() for each in every.values()) / ranks
                same.append(torch.allclose(values, total.float(), rtol=1e-6, atol=0.0))
                same.append(torch.equal(alone["rank0"][kind][name], every["rank0"][kind][name]))
        handle.load_state_dict(whole)
        left = handle.gathered_state_dict(None)
        for name, values in whole["rank0"]["residual"].items():
            total = sum(each["residual"][name] for each in left.values())
            same.append(torch.allclose(values, total, rtol=1e-6))
        none = handle.merged_state_dict({})
    return {"keys": sorted(whole), "same": same, "none": none}
