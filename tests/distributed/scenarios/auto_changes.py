"""What may happen to a run in the middle of decisions: checkpoints, lost ranks, accumulation."""

import json
import os
from typing import Any
from unittest import mock

import numpy as np
import torch
from torch import nn

import gradwire
from gradwire._auto import FP32, Setting
from gradwire.torch.auto import controller as pilot
from gradwire.torch.ddp import ExchangeError, Handle
from tests.distributed.scenarios.auto import (
    CODED,
    Known,
    every,
    other_figures,
    ratios,
    scripted,
    sgd,
)
from tests.distributed.scenarios.common import (
    SHAPES,
    SMALL_BUCKETS,
    Given,
    about,
    attached,
    fingerprint,
    gradients_of,
    integers,
    network,
    residuals,
    train,
)


def saved_with(rank: int, ratio: float, *, min_ratio: float, steps: int = 8) -> dict[str, Any]:
    """The checkpoint of a run that has settled on this ratio."""
    module = network()
    options = {"optimizer": sgd(module), "min_ratio": min_ratio}
    with (
        scripted(every(Setting("codec", ratio))),
        attached(module, "auto", options=options, bucket_cap_mb=SMALL_BUCKETS) as (model, handle),
    ):
        train(model, rank, range(steps), optimizer=options["optimizer"])
        assert set(ratios(handle).values()) == {ratio}
        return handle.state_dict()


def off_the_ladder(rank: int, world_size: int) -> dict[str, Any]:
    """Resume with ratios that this run does not try; the decider is the real one."""
    del world_size
    found = {}
    for ratio, before, bound in (
        (0.03, 0.03, None),
        (1.0, 0.01, None),
        (0.01, 0.01, 0.05),
        (0.05, 0.01, 0.001),
    ):
        saved = saved_with(rank, ratio, min_ratio=before)
        bandwidth = [1e5]
        handles: list[Handle] = []
        module = network()
        options = {"optimizer": sgd(module), "min_ratio": bound}
        evidence = type("Here", (Known,), {"bandwidth": bandwidth})
        with (
            mock.patch.object(pilot, "figures", other_figures(rank, bandwidth, handles)),
            mock.patch.object(pilot, "Measured", evidence),
            attached(module, "auto", options=options, bucket_cap_mb=SMALL_BUCKETS) as (
                model,
                handle,
            ),
        ):
            handles.append(handle)
            handle.load_state_dict(saved)
            loaded = set(ratios(handle).values())
            train(model, rank, range(60), optimizer=options["optimizer"])
            reason = handle.report(residuals=False).decision
            found[ratio, bound] = loaded, set(ratios(handle).values()), reason
    return {"found": found}


def while_all_is_sent(rank: int, world_size: int) -> dict[str, Any]:
    """Save, and load nothing at all, when the codec is about to be left."""
    del world_size
    module = network()
    optimizer = sgd(module)
    found: dict[str, Any] = {}
    with (
        scripted(every(CODED), every(FP32), every(FP32)),
        attached(module, "auto", options={"optimizer": optimizer}, bucket_cap_mb=SMALL_BUCKETS) as (
            model,
            handle,
        ),
    ):
        step = 0
        while set(ratios(handle).values()) != {1.0}:
            train(model, rank, range(step, step + 1), optimizer=optimizer)
            step += 1
            assert step < 30
        found["saved"] = set(about(handle.state_dict())["schedule"]["chosen"].values())
        handle.load_state_dict(None, policy="drop")
        found["restarted"] = handle.step
        seen = []
        for each in range(step, step + 20):
            train(model, rank, range(each, each + 1), optimizer=optimizer)
            seen.append(set(ratios(handle).values()))
        found["seen"] = seen
        found["print"] = fingerprint(module)
    return found


def each_its_own(rank: int, world_size: int) -> dict[str, Any]:
    """Go on after a failure: one rank had left the codec when the other one had not."""
    steps = 6 + 4 * rank
    module = network()
    optimizer = sgd(module)
    saved = saved_with(rank, 0.05, min_ratio=0.05)
    (mine,) = saved.values()
    text = json.loads(mine["about"])
    text["step"] = steps
    if rank == 0:
        text["schedule"]["chosen"] = dict.fromkeys(text["schedule"]["chosen"])
    mine["about"] = json.dumps(text)
    with (
        scripted(),
        attached(module, "auto", options={"optimizer": optimizer}, bucket_cap_mb=SMALL_BUCKETS) as (
            model,
            handle,
        ),
    ):
        handle.load_state_dict(saved, policy="own")
        found = {"ratios": ratios(handle), "step": handle.step}
        train(model, rank, range(4), optimizer=optimizer)
        return {**found, "world": world_size, "print": fingerprint(module)}


def pair(rank: int, world_size: int, folder: str) -> None:
    """What two ranks save in the middle of compression, with momentum and with AdamW."""
    del world_size
    for kind in ("sgd", "adamw"):
        module = network()
        optimizer: Any = (
            sgd(module) if kind == "sgd" else torch.optim.AdamW(module.parameters(), lr=1e-2)
        )
        with (
            scripted(every(CODED)),
            attached(
                module, "auto", options={"optimizer": optimizer}, bucket_cap_mb=SMALL_BUCKETS
            ) as (model, handle),
        ):
            train(model, rank, range(8), optimizer=optimizer)
            whole = {"module": module.state_dict(), "optimizer": optimizer.state_dict()}
            torch.save({**whole, "handle": handle.state_dict()}, f"{folder}/{kind}{rank}.pt")


def alone(rank: int, world_size: int, folder: str) -> dict[str, Any]:
    """Go on with one rank, which has nothing to exchange, and so nothing to compress."""
    assert world_size == 1
    found: dict[str, Any] = {}
    for kind in ("sgd", "adamw"):
        saved = [torch.load(f"{folder}/{kind}{each}.pt", weights_only=True) for each in range(2)]
        module = network()
        module.load_state_dict(saved[0]["module"])
        optimizer: Any = (
            sgd(module) if kind == "sgd" else torch.optim.AdamW(module.parameters(), lr=1e-2)
        )
        optimizer.load_state_dict(saved[0]["optimizer"])
        with attached(
            module, "auto", options={"optimizer": optimizer}, bucket_cap_mb=SMALL_BUCKETS
        ) as (model, handle):
            handle.load_state_dict([each["handle"] for each in saved])
            weight: Any = module[0].weight
            left = residuals(handle)["0.weight"].copy()
            seen, largest, brought = [], [float(np.abs(left).max())], []
            for step in range(5):
                train(model, rank, range(step, step + 1), optimizer=optimizer)
                seen.append(set(ratios(handle).values()))
                largest.append(float(np.abs(residuals(handle)["0.weight"]).max()))
                brought.append(weight.grad.numpy().ravel().copy())
            held = optimizer.state.get(weight)
            found[kind] = {
                "seen": seen,
                "largest": largest,
                "left": left,
                "brought": brought,
                "steps": held and float(held["step"]),
            }
    return found


def accumulating(rank: int, world_size: int) -> dict[int, Any]:
    """Two passes for each step, both synchronised, with changes between the one and the other."""
    found: dict[int, Any] = {}
    for shift in (0, 1):
        given = {name: np.zeros(int(np.prod(shape))) for name, shape in SHAPES.items()}
        applied = {name: np.zeros_like(zero) for name, zero in given.items()}
        module = Given()
        optimizer = sgd(module)
        seen, passes = [], 0
        with (
            scripted(every(CODED), every(FP32), every(FP32), every(CODED), every(FP32)),
            attached(
                module, "auto", options={"optimizer": optimizer}, bucket_cap_mb=SMALL_BUCKETS
            ) as (model, handle),
        ):
            for step in range(14):
                optimizer.zero_grad()
                for _ in range(1 if step == 0 and shift else 2):
                    gradients = integers(61, rank, passes)
                    passes += 1
                    model(gradients).backward()
                    seen.append(ratios(handle)["a"])
                    for name, each in gradients.items():
                        given[name] += each.numpy().ravel()
                optimizer.step()
                for name, average in gradients_of(module).items():
                    applied[name] += average * world_size
            final = residuals(handle)
        found[shift] = {"seen": seen, "given": given, "applied": applied, "final": final}
    return found


class _Deadly:
    """It cannot be told to others."""

    def to_json(self) -> Any:
        os._exit(7)


def lost_in_a_look(rank: int, world_size: int) -> dict[str, Any]:
    """Rank 1 dies while all tell each other what they have measured; say what the other sees."""
    del world_size
    module: nn.Module = network()
    optimizer = sgd(module)
    model = torch.nn.parallel.DistributedDataParallel(module, bucket_cap_mb=SMALL_BUCKETS)
    handle = gradwire.torch.ddp.attach(model, "auto", optimizer=optimizer)
    errors = []
    with mock.patch.object(pilot, "figures", return_value=_Deadly() if rank == 1 else None):
        for step in range(20):
            try:
                train(model, rank, range(step, step + 1), optimizer=optimizer)
            except ExchangeError as error:
                errors.append(str(error))
                if len(errors) == 2:
                    break
    return {"errors": errors, "repr": repr(handle), "kept": type(handle.error).__name__}
