"""Codecs that change from epoch to epoch."""

import contextlib
import gc
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.optim import AdamW

import gradwire
import gradwire.torch.ddp
from gradwire.schedule import Accordion, BySteps, Constant, DenseWarmUp, WarmUp
from gradwire.schedule.warm_up import RATIO, STEPS
from gradwire.torch.ddp import Handle
from gradwire.torch.engine.scheduler import EPOCH
from gradwire.torch.engine.step import BufferPool
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
    plain,
    residuals,
    train,
)


def ratios(handle: Any) -> dict[str, Any]:
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


def accordion_of_before(rank: int, world_size: int) -> list[dict[str, Any]]:
    """Save codecs of the default exchange as when it was an all-gather; norms before and after."""
    before, now = '{"kind": "all_gather", "mean": "ranks"}', '{"kind": "by_ranks"}'
    options = {"schedule": Accordion(gradwire.topk(0.5), gradwire.topk(0.05), interval=1)}
    found = []
    with attached(Given(), gradwire.topk(0.1), options=options) as (model, handle):
        handle.epoch(0)
        Sizes(model, rank).step(a=1.0, b=2.0)
        handle.epoch(1)
        saved = handle.state_dict()
        found.append(about(saved)["schedule"]["norms"])
    text = saved[f"rank{rank}"]["about"]
    assert now in text
    saved[f"rank{rank}"]["about"] = text.replace(now, before)
    with attached(Given(), gradwire.topk(0.1), options=options) as (model, handle):
        handle.load_state_dict(saved)
        found.append(about(handle.state_dict())["schedule"]["norms"])
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


# What codecs that send steps begin with -------------------------------------------------------


@contextlib.contextmanager
def stepping(
    codec: Any = None, *, seed: int = 0, module: Any = None, **options: Any
) -> Iterator[tuple[Any, Any, Handle]]:
    """A model and its optimizer, with `gradwire.adam` unless said otherwise."""
    module = network(seed) if module is None else module
    optimizer = AdamW(module.parameters(), lr=1e-2)
    codec = gradwire.adam(ratio=0.01) if codec is None else codec
    options = {"optimizer": optimizer, **options}
    with attached(module, codec, options=options, bucket_cap_mb=SMALL_BUCKETS) as (model, handle):
        yield model, optimizer, handle


def begins(rank: int, world_size: int) -> dict[str, Any]:
    """Ratios right before and after the end of the warm-up, with codecs that have one or not."""
    del world_size
    adam, named = gradwire.adam(ratio=0.01), {"0.*": gradwire.adam(0.01), "*": gradwire.float8()}
    every: dict[str, tuple[Any, dict[str, Any]]] = {
        "adam": (adam, {}),
        "named": (named, {}),
        "said": (adam, {"schedule": BySteps(WarmUp((RATIO,)), STEPS)}),
        "constant": (adam, {"schedule": Constant()}),
        "dense enough": (gradwire.adam(ratio=0.1), {}),
        "one bit": (gradwire.adam_onebit(), {}),
        "gradients": (gradwire.topk(ratio=0.01), {}),
    }
    found = {}
    for kind, (codec, options) in every.items():
        with warnings.catch_warnings(), stepping(codec, **options) as (model, optimizer, handle):
            warnings.simplefilter("ignore")
            told = []
            for steps in (range(1), range(1, STEPS), range(STEPS, STEPS + 4)):
                handle.report(reset=True)
                train(model, rank, steps, optimizer=optimizer)
                report = handle.report()
                sent = {
                    name: None if each.paused else getattr(each.codec.sparsify, "ratio", None)
                    for name, each in handle._parameters.items()
                    if each.state is not None
                }
                told.append((sent, report.schedule, report.wire_bytes))
            found[kind] = told, fingerprint(model)
    return found


def resumes(rank: int, world_size: int, folder: str, steps: int) -> dict[str, Any]:
    """Train on for a few steps after a checkpoint of this step, with a pass that is discarded."""
    del world_size

    def run(model: Any, optimizer: Any, handle: Handle, steps: range) -> None:
        for step in steps:
            if step == STEPS:  # thrown away, twice: by hand, and because no step follows it
                for _ in range(2):
                    inputs = torch.ones(4, 32)
                    optimizer.zero_grad()
                    model(inputs).sum().backward()
                    handle.discard()
                optimizer.zero_grad()
                model(inputs).sum().backward()
            train(model, rank, range(step, step + 1), optimizer=optimizer)

    def outcome(model: Any, handle: Handle) -> tuple[Any, ...]:
        return fingerprint(model), plain(handle.state_dict())

    with stepping() as (model, optimizer, handle):
        run(model, optimizer, handle, range(steps))
        halves = {"model": model.module, "optimizer": optimizer, "handle": handle}
        saved = {name: each.state_dict() for name, each in halves.items()}
        torch.save(saved, Path(folder) / f"{steps}-{rank}.pt")
        run(model, optimizer, handle, range(steps, STEPS + 5))
        whole = outcome(model, handle)
    saved = torch.load(Path(folder) / f"{steps}-{rank}.pt", weights_only=True)
    with stepping(seed=99) as (model, optimizer, handle):
        model.module.load_state_dict(saved["model"])
        optimizer.load_state_dict(saved["optimizer"])
        handle.load_state_dict(saved["handle"])
        run(model, optimizer, handle, range(steps, STEPS + 5))
        return {"same": whole == outcome(model, handle), "ratios": ratios(handle)}


def resumes_on_others(rank: int, world_size: int, folder: str, steps: int) -> dict[str, Any]:
    """Go on from what `resumes` has saved with two ranks, until the warm-up is over."""
    del world_size
    files = [Path(folder) / f"{steps}-{each}.pt" for each in range(2)]
    saved = [torch.load(each, weights_only=True) for each in files]
    found = {}
    with stepping(seed=99) as (model, optimizer, handle):
        model.module.load_state_dict(saved[0]["model"])
        optimizer.load_state_dict(saved[0]["optimizer"])
        handle.load_state_dict([each["handle"] for each in saved])
        for step in range(steps, STEPS + 3):
            train(model, rank, range(step, step + 1), optimizer=optimizer)
            found[step] = ratios(handle)["0.weight"]
        return {"ratios": found, "print": fingerprint(model)}


def resumes_from_before(rank: int, world_size: int) -> dict[int, list[Any]]:
    """Go on from checkpoints without a warm-up, as they all were before there was one."""
    del world_size
    found = {}
    for steps in (3, STEPS + 3):
        with stepping(schedule=Constant()) as (model, optimizer, handle):
            train(model, rank, range(steps), optimizer=optimizer)
            saved, halves = handle.state_dict(), optimizer.state_dict()
        with stepping() as (model, optimizer, handle):
            optimizer.load_state_dict(halves)
            handle.load_state_dict(saved)
            train(model, rank, range(steps, steps + 1), optimizer=optimizer)
            found[steps] = [ratios(handle)["0.weight"], about(handle.state_dict())["schedule"]]
    return found


def gives_back(rank: int, world_size: int) -> list[int]:
    """Bytes of the buffers of frames: in the warm-up, and some steps after it."""
    del world_size
    gc.collect()
    others = {id(each) for each in gc.get_objects() if isinstance(each, BufferPool)}
    module = torch.nn.Sequential(
        torch.nn.Linear(32, 2000, bias=False), torch.nn.Linear(2000, 16, bias=False)
    )
    schedule = BySteps(WarmUp((0.05,)), STEPS)
    with stepping(module=module, schedule=schedule) as (model, optimizer, handle):
        found = []
        for steps in (range(STEPS), range(STEPS, STEPS + 8)):
            train(model, rank, steps, optimizer=optimizer)
            handle.report()  # waits for what is under way
            mine = [each for each in gc.get_objects() if isinstance(each, BufferPool)]
            found.append(sum(each.nbytes for each in mine if id(each) not in others))
        return found


# Schedules that nobody advances ---------------------------------------------------------------


def untold(rank: int, world_size: int) -> dict[str, Any]:
    """Epochs that a program does not tell of, tells of late, or told of before a resume."""
    del world_size
    found: dict[str, Any] = {}
    for kind, schedule, late in (
        ("warm-up", WarmUp((0.5, 0.2)), False),
        ("dense", DenseWarmUp(1), False),
        ("late", WarmUp((0.5, 0.2)), True),
        ("accordion", Accordion(0.5, 0.01), False),
    ):
        with (
            warnings.catch_warnings(record=True) as caught,
            attached(network(), gradwire.topk(0.01), options={"schedule": schedule}) as (
                model,
                handle,
            ),
        ):
            warnings.simplefilter("always")
            sent, shown = [], []
            for step in range(2 * EPOCH + 5):
                if late and step == EPOCH + 3:
                    handle.epoch(0)  # which has only now begun, and so is what counts
                train(model, rank, range(step, step + 1))
                sent.append(ratios(handle)["0.weight"])
                shown.append(handle.report(residuals=False).schedule)
            found[kind] = sent, shown, [str(each.message) for each in caught if _told(each)]
            found[kind + " saved"] = about(handle.state_dict())["schedule"]["told"]
    options = {"schedule": WarmUp((0.5, 0.2))}
    with attached(network(), gradwire.topk(0.01), options=options) as (model, handle):
        handle.epoch(0)
        train(model, rank, range(EPOCH + 3))
        saved = handle.state_dict()
    with (
        warnings.catch_warnings(record=True) as caught,
        attached(network(), gradwire.topk(0.01), options=options) as (model, handle),
    ):
        warnings.simplefilter("always")
        handle.load_state_dict(saved)
        train(model, rank, range(EPOCH + 3, EPOCH + 8))
        found["resumed"] = ratios(handle)["0.weight"], [str(each) for each in caught if _told(each)]
    return found


def _told(caught: warnings.WarningMessage) -> bool:
    return "handle.epoch" in str(caught.message)


def strict(rank: int, world_size: int) -> dict[str, Any]:
    """A program with warnings for errors is told by an error, on all ranks, and may go on."""
    del world_size
    options = {"schedule": WarmUp((0.5, 0.2))}
    with attached(network(), gradwire.topk(0.01), options=options) as (model, handle):
        train(model, rank, range(EPOCH))
        with warnings.catch_warnings():
            warnings.simplefilter("error", RuntimeWarning)
            try:
                train(model, rank, range(EPOCH, EPOCH + 1))
            except RuntimeWarning as error:
                text = str(error)
        train(model, rank, range(EPOCH, EPOCH + 2))
        return {
            "text": text,
            "step": handle.step,
            "ratio": ratios(handle)["0.weight"],
            "print": fingerprint(model),
        }


# Nothing to compress --------------------------------------------------------------------------


def idle(rank: int, world_size: int) -> dict[str, Any]:
    """What is said where nothing is compressed, at `attach` and in the report."""
    alone = [dist.new_group([each]) for each in range(world_size)][rank]
    frozen = network()
    small = {"min_numel": 10**6}
    found = {}
    for kind, module, codec, options, group in (
        ("one rank", network(), gradwire.topk(0.01), {}, alone),
        ("one rank, auto", network(), "auto", {}, alone),
        ("small", network(), gradwire.topk(0.01), small, None),
        ("matrices", network(), gradwire.topk(0.01), {"min_ndim": 3}, None),
        ("frozen", frozen, gradwire.topk(0.01), {}, None),
        ("small, auto", network(), "auto", small, None),
        ("compressed", network(), gradwire.topk(0.01), {}, None),
    ):
        model = DistributedDataParallel(module, process_group=group)
        if module is frozen:
            for each in module.parameters():
                each.requires_grad_(each.numel() < 1024)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            handle = gradwire.torch.ddp.attach(model, codec, optimizer=optimizer, **options)  # type: ignore[arg-type]
        with handle:
            if module is not frozen:
                train(model, rank, range(2), optimizer=optimizer)
            found[kind] = [str(each.message) for each in caught], handle.report().decision
    return found
