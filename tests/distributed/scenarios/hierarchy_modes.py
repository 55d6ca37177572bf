"""DDP's modes on two nodes of two ranks, and states that are measured, divided and merged."""

import contextlib
import json
import math
import warnings
from typing import Any

import numpy as np
import torch
from torch.nn.parallel import DistributedDataParallel

import gradwire
import gradwire.torch
import gradwire.torch.ddp
from gradwire.schedule import Accordion
from tests.distributed.scenarios.common import SMALL_BUCKETS, attached, fingerprint, network, train
from tests.distributed.scenarios.hierarchy import SHAPES, Odd, integers, joined

OPTIONS = {"hierarchy": 2, "min_numel": 64}


class Sums:
    """What all ranks have given, and what was applied; means of two even integers are exact."""

    def __init__(self) -> None:
        self.given = {name: np.zeros(math.prod(shape)) for name, shape in SHAPES.items()}
        self.applied = {name: np.zeros(math.prod(shape)) for name, shape in SHAPES.items()}

    def give(self, gradients: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        for name, each in gradients.items():
            self.given[name] += each.numpy().ravel()
        return gradients

    def take(self, model: DistributedDataParallel) -> None:
        for name, parameter in model.module.named_parameters():
            if parameter.grad is not None:
                self.applied[name] += 4 * parameter.grad.double().numpy().ravel()
        model.zero_grad()

    def result(self, handle: Any) -> dict[str, Any]:
        nodes = joined(handle)
        left = {name: 2 * (nodes[0][name] + nodes[1][name].astype(float)) for name in nodes[0]}
        return {"given": self.given, "applied": self.applied, "left": left, "step": handle.step}


def accumulation(rank: int, world_size: int, **ddp: Any) -> dict[str, Any]:
    """Exchange every third backward pass; with ``ddp``, as with a static graph, each of them."""
    sums = Sums()
    with attached(
        Odd(), gradwire.topk(0.05), options=OPTIONS, bucket_cap_mb=SMALL_BUCKETS, **ddp
    ) as (model, handle):
        for step in range(6):
            quiet = not ddp and step % 3 < 2
            with model.no_sync() if quiet else contextlib.nullcontext():
                model(sums.give(integers(rank, step))).backward()
            if not quiet:
                sums.take(model)
        return sums.result(handle)


def unused(rank: int, world_size: int) -> dict[str, Any]:
    """Use `a` everywhere, then nowhere, then on the last rank only, then everywhere."""
    sums, left, was_none = Sums(), [], []
    with attached(Odd(), gradwire.topk(0.05), options=OPTIONS, find_unused_parameters=True) as (
        model,
        handle,
    ):
        for step in range(5):
            gradients = integers(rank, step)
            if step in (1, 2) or (step == 3 and rank != world_size - 1):
                del gradients["a"]
            model(sums.give(gradients)).backward()
            was_none.append(model.module.a.grad is None)
            sums.take(model)
            left.append({node: each["a"].tobytes() for node, each in joined(handle).items()})
        kept = [left[step] == left[0] for step in (1, 2, 3)]
        return {**sums.result(handle), "none": was_none, "kept": kept}


def uneven(rank: int, world_size: int) -> dict[str, Any]:
    """Under join(), rank r has 2 + r batches; the nodes go on with what is left."""
    sums = Sums()
    with attached(Odd(), gradwire.topk(0.05), options=OPTIONS, bucket_cap_mb=SMALL_BUCKETS) as (
        model,
        handle,
    ):
        optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
        with model.join():
            for step in range(2 + rank):
                optimizer.zero_grad()
                model(sums.give(integers(rank, step))).backward()
                optimizer.step()
        for name, parameter in model.module.named_parameters():
            sums.applied[name] = -4 * parameter.detach().double().numpy().ravel()
        return {**sums.result(handle), "print": fingerprint(model)}


# What is kept of a share -------------------------------------------------------------------------

_SCHEDULE = Accordion(0.5, 0.05, eta=0.5, interval=1)
_TRIPLED = (1.0, 1.0, 3.0, 3.0, 3.0)
"""By epoch: what the second half of `a` is, beside ones. Other parameters are ones."""


def _epoch(model: DistributedDataParallel, rank: int, epoch: int) -> None:
    """Two steps; those of the second node are not to be looked at."""
    for _ in range(2):
        gradients = {name: torch.ones(shape) for name, shape in SHAPES.items()}
        gradients["a"][17:] *= _TRIPLED[epoch]
        # Only the mean of the node counts: that of 0.5 and 1.5.
        factor = (0.5, 1.5, 100.0, 100.0)[rank]
        model.zero_grad()
        model({name: factor * each for name, each in gradients.items()}).backward()


def measured(rank: int, world_size: int) -> dict[str, Any]:
    """Decide by the norms of all shares; save within an epoch, and go on with other nodes."""
    found: dict[str, Any] = {"critical": [], "norms": []}

    def look(handle: Any) -> None:
        (saved,) = handle.state_dict().values()
        position = json.loads(saved["about"])["schedule"]
        found["critical"].append(position["critical"])
        found["norms"].append(position["norms"])

    options = {**OPTIONS, "schedule": _SCHEDULE}
    codec = gradwire.topk(0.05)
    with attached(Odd(), codec, options=options, bucket_cap_mb=SMALL_BUCKETS) as (model, handle):
        for epoch in range(5):
            handle.epoch(epoch)
            look(handle)
            _epoch(model, rank, epoch)
        (mine,) = handle.state_dict().values()
        found["holds"] = sorted(mine["measured"])
        everything = handle.gathered_state_dict(None)
        handle.epoch(5)
        look(handle)
    found["after"] = {}
    for shares, states in ((1, everything), (2, everything), (4, everything)):
        changed = options | {"hierarchy": shares}
        with attached(Odd(), codec, options=changed) as (_, handle):
            handle.load_state_dict(states)
            handle.epoch(5)
            look(handle)
    return found


def refused(rank: int, world_size: int) -> dict[str, str]:
    """Other ranks per node; the handle goes on."""
    found = {}
    model = DistributedDataParallel(network())
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with gradwire.torch.ddp.attach(model, gradwire.topk(0.05), hierarchy=2) as handle:
            try:
                handle.merged_state_dict()
            except ValueError as error:
                found["merged"] = str(error)
            try:
                handle.regroup(model.process_group)
            except ValueError as error:
                found["regroup"] = str(error)
            train(model, rank, range(2))
            found["after"] = str(handle.step)
    return found
