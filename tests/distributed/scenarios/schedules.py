"""Codecs that change from epoch to epoch."""

from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.nn.parallel import DistributedDataParallel

import gradwire
import gradwire.torch.ddp
from gradwire.schedule import Accordion, DenseWarmUp, WarmUp
from gradwire.torch.ddp import Handle
from tests.distributed.scenarios.common import (
    SHAPES,
    SMALL_BUCKETS,
    Given,
    about,
    attached,
    changed,
    fingerprint,
    gradients_of,
    integers,
    network,
    residuals,
    train,
)


def ratios(handle: Handle) -> dict[str, Any]:
    """What each compressed parameter asks for now; None where it travels dense."""
    return {
        name: None if each.paused else each.codec.sparsify.ratio
        for name, each in handle._parameters.items()
        if each.state is not None
    }


def warm_up(rank: int, world_size: int, dense: bool) -> dict[str, Any]:
    """Two steps an epoch with integers, so that sums are exact; the ratio falls on the way."""
    schedule = DenseWarmUp(2) if dense else WarmUp((0.5, 0.2))
    codec = gradwire.topk(ratio=0.05)
    given = {name: np.zeros(int(np.prod(shape))) for name, shape in SHAPES.items()}
    applied = {name: np.zeros_like(zero) for name, zero in given.items()}
    found: dict[str, Any] = {"ratios": [], "sent": [], "left": []}
    options = {"schedule": schedule}
    with attached(Given(), codec, options=options, bucket_cap_mb=SMALL_BUCKETS) as (model, handle):
        for epoch in range(4):
            handle.epoch(epoch)
            found["ratios"].append(ratios(handle))
            for step in range(2):
                gradients = integers(21, rank, 2 * epoch + step)
                model.zero_grad()
                model(gradients).backward()
                for name, each in gradients.items():
                    given[name] += each.numpy().ravel()
                for name, average in gradients_of(model.module).items():
                    applied[name] += average * world_size
            report = handle.report(reset=True)
            found["sent"].append({each.name: each.bytes_per_step for each in report.parameters})
            found["left"].append({key: each.any() for key, each in residuals(handle).items()})
        return {**found, "given": given, "applied": applied, "final": residuals(handle)}


class Sizes:
    """Gradients of chosen norms: every entry of a parameter is the same."""

    def __init__(self, model: DistributedDataParallel, rank: int) -> None:
        self._model = model
        self._rank = rank

    def step(self, **values: float) -> None:
        """One backward pass; rank 1's gradients are none that anyone should look at."""
        factor = 1.0 if self._rank == 0 else 1e6
        gradients = {
            name: torch.full(shape, factor * values.get(name, 1.0))
            for name, shape in SHAPES.items()
        }
        self._model.zero_grad()
        self._model(gradients).backward()


def accordion(rank: int, world_size: int, lowered: bool = True) -> list[dict[str, Any]]:
    """Walk through the rule of section 6.1, parameter by parameter, with an interval of two."""
    schedule = Accordion(0.5, 0.05, eta=0.5, interval=2)
    found = []
    options = {"schedule": schedule}
    with attached(
        Given(), gradwire.topk(ratio=0.1), options=options, bucket_cap_mb=SMALL_BUCKETS
    ) as (model, handle):
        sizes = Sizes(model, rank)
        walk: list[tuple[dict[str, float], float]] = [
            ({"a": 1.0, "b": 1.0, "c": 1.0}, 0.1),  # epoch 0: everything is critical
            ({"a": 9.0, "b": 9.0, "c": 9.0}, 0.1),  # not looked at
            ({"a": 1.0, "b": 1.5, "c": 0.0}, 0.1),  # b by exactly eta, c to nothing
            ({"a": 1.0, "b": 1.0, "c": 1.0}, 0.01),  # the learning rate falls: see the next
            ({"a": 1.2, "b": 1.4, "c": 1.0}, 0.01),  # a and b calm, c from nothing
            ({}, 0.01),
        ]
        for epoch, (values, lr) in enumerate(walk):
            lr = lr if lowered else 0.1
            handle.epoch(epoch, lr=lr)
            found.append({"before": ratios(handle)})
            before = residuals(handle)
            handle.epoch(epoch, lr=lr)  # the same one again changes nothing
            after = residuals(handle)
            found[-1]["kept"] = {
                key: before[key].tobytes() == after[key].tobytes() for key in after
            }
            sizes.step(**values)
            sizes.step(**values)
        found.append(
            {"before": ratios(handle), "norms": about(handle.state_dict())["schedule"]["norms"]}
        )
    return found


def resume(rank: int, world_size: int, folder: str, kind: str) -> dict[str, Any]:
    """Train 9 steps of 2 an epoch; or 5, save in the middle of an epoch, and go on from there."""
    topk = gradwire.topk(ratio=0.02)
    codec, schedule = {
        "accordion": (topk, Accordion(0.5, 0.02, eta=0.2, interval=2)),
        "warm-up": (topk, WarmUp((0.5, 0.2, 0.1))),
        "dense": (topk, DenseWarmUp(3)),
        "scalecom": (gradwire.scalecom(0.02), DenseWarmUp(2)),
        "dgc": (gradwire.dgc(0.02), WarmUp.code(0.02, 3)),
    }[kind]
    options = {"schedule": schedule}

    def run(model: Any, handle: Handle, steps: range) -> None:
        for step in steps:
            if step % 2 == 0:
                handle.epoch(step // 2)
            train(model, rank, range(step, step + 1), lr=0.5)

    def outcome(model: Any, handle: Handle) -> tuple[Any, ...]:
        left = {name: each.tobytes() for name, each in residuals(handle).items()}
        return fingerprint(model), left, about(handle.state_dict())["schedule"]["norms"]

    with attached(network(), codec, options=options, bucket_cap_mb=SMALL_BUCKETS) as (
        model,
        handle,
    ):
        run(model, handle, range(9))
        whole = outcome(model, handle)
    path = Path(folder) / f"rank{rank}.pt"
    with attached(network(), codec, options=options, bucket_cap_mb=SMALL_BUCKETS) as (
        model,
        handle,
    ):
        run(model, handle, range(5))
        torch.save({"model": model.module.state_dict(), "gradwire": handle.state_dict()}, path)
    saved = torch.load(path, weights_only=True)
    module = network(seed=99)
    module.load_state_dict(saved["model"])
    with attached(module, codec, options=options, bucket_cap_mb=SMALL_BUCKETS) as (model, handle):
        handle.load_state_dict(saved["gradwire"])
        run(model, handle, range(5, 9))
        parts = outcome(model, handle)
    return {
        "same": whole == parts,
        "fingerprint": whole[0],
        "measured": len(saved["gradwire"][f"rank{rank}"]["measured"]),
    }


def refusals(rank: int, world_size: int) -> dict[str, str]:
    """What ranks have to agree on, and what goes together."""
    found = {}
    for name, codec, schedule in (
        ("no ratio", gradwire.topk(k=5), WarmUp()),
        ("other kind", gradwire.topk(0.1), Accordion(gradwire.sidco(0.1), 0.01)),
        ("other schedule", gradwire.topk(0.1), WarmUp() if rank == 0 else DenseWarmUp(1)),
        ("not a schedule", gradwire.topk(0.1), "warm-up"),
    ):
        try:
            model = DistributedDataParallel(network())
            gradwire.torch.ddp.attach(model, codec, schedule=schedule)  # type: ignore[arg-type]
        except (ValueError, TypeError) as error:
            found[name] = str(error)
    with attached(network(), gradwire.topk(0.1), options={"schedule": WarmUp()}) as (_, handle):
        handle.epoch(3)
        for name, epoch in (("backwards", 2), ("other epoch", 4 + rank)):
            try:
                handle.epoch(epoch)
            except ValueError as error:
                found[name] = str(error)
        found["untouched"] = str(ratios(handle))
    try:
        handle.epoch(5)
    except ValueError as error:
        found["detached"] = str(error)
    return found


def decided_otherwise(rank: int, world_size: int) -> tuple[str, int]:
    """Load a state in which one rank has taken other decisions than the other one."""
    options = {"schedule": Accordion(low=0.5, high=0.01)}
    with attached(network(), gradwire.topk(ratio=0.01), options=options) as (model, handle):
        train(model, rank, range(2))
        saved = handle.state_dict()
        if rank == 1:
            schedule = about(saved)["schedule"]
            critical = dict.fromkeys(schedule["critical"], False)
            saved = changed(saved, schedule=schedule | {"critical": critical})
        text = ""
        try:
            handle.load_state_dict(saved)
        except ValueError as error:
            text = str(error)
        train(model, rank, range(2, 3))
        return text, handle.step
