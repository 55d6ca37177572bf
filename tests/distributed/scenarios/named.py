"""Codecs by the names of parameters, and schedules that count steps."""

import io
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch.nn.parallel import DistributedDataParallel
from torch.optim import AdamW

import gradwire
import gradwire.torch.ddp
from gradwire.exchange import AllReduce
from gradwire.memory import Residual
from gradwire.schedule import BySteps, DenseWarmUp, WarmUp
from tests.distributed.scenarios.common import (
    SHAPES,
    SMALL_BUCKETS,
    Given,
    attached,
    fingerprint,
    gradients_of,
    integers,
    network,
    plain,
    residuals,
    train,
)
from tests.distributed.scenarios.schedules import ratios


def conserving(rank: int, world_size: int) -> dict[str, Any]:
    """Three steps with integers: what was applied and what is left are what was given."""
    codecs = {
        "a": gradwire.topk(ratio=0.05),
        "b": None,
        "?": gradwire.topk(ratio=0.5, memory=Residual(decay=1.0)),
    }
    given = {name: np.zeros(int(np.prod(shape))) for name, shape in SHAPES.items()}
    applied = {name: np.zeros_like(zero) for name, zero in given.items()}
    with attached(Given(), codecs, bucket_cap_mb=SMALL_BUCKETS) as (model, handle):
        for step in range(3):
            gradients = integers(22, rank, step)
            model.zero_grad()
            model(gradients).backward()
            for name, each in gradients.items():
                given[name] += each.numpy().ravel()
            for name, average in gradients_of(model.module).items():
                applied[name] += average * world_size
        report = handle.report()
        return {
            "given": given,
            "applied": applied,
            "final": residuals(handle),
            "dense": {each.name for each in report.parameters if each.dense},
            "ratios": ratios(handle),
            "text": str(report),
        }


def with_an_optimizer(rank: int, world_size: int) -> dict[str, Any]:
    """One parameter by Adam's steps, one by gradients, the others dense; resumed half-way."""
    codecs = {"0.*": gradwire.adam(ratio=0.05), "3.*": gradwire.signsgd()}

    def run(optimizing: bool, steps: range, saved: Any = None) -> tuple[Any, ...]:
        model = DistributedDataParallel(network(), bucket_cap_mb=SMALL_BUCKETS)
        optimizer = AdamW(model.parameters(), lr=0.01, weight_decay=0.1)
        with gradwire.torch.ddp.attach(model, codecs, optimizer=optimizer) as handle:
            if saved is not None:
                saved = torch.load(io.BytesIO(saved), weights_only=True)
                model.module.load_state_dict(saved["model"])
                optimizer.load_state_dict(saved["optimizer"])
                handle.load_state_dict(saved["gradwire"])
            train(model, rank, steps, optimizer=optimizer)
            names = {id(each): name for name, each in model.module.named_parameters()}
            kept = {names[id(each)] for each, state in optimizer.state.items() if state}
            file = io.BytesIO()
            parts = {"model": model.module, "optimizer": optimizer, "gradwire": handle}
            torch.save({name: each.state_dict() for name, each in parts.items()}, file)
            return fingerprint(model), kept, plain(handle.state_dict()), file.getvalue()

    whole = run(True, range(6))
    half = run(True, range(3))
    rest = run(True, range(3, 6), half[-1])
    return {"same": whole[:3] == rest[:3], "fingerprint": whole[0], "kept": whole[1]}


def refusals(rank: int, world_size: int) -> dict[str, str]:
    """What cannot be meant, or does not go together."""
    one = gradwire.topk(0.1)
    given: dict[str, Any] = {
        "mistyped": {"0.weight": one, "9.weight": None},
        "no codec": {"0.*": None},
        "not a name": {0: one},
        "not a codec": {"0.*": gradwire.topk},
        "exchanges": {"0.*": one, "3.*": gradwire.randomk(0.1)},
        "ranks": {"0.*": one} if rank == 0 else {"3.*": one},
        "no optimizer": {"0.*": one, "3.*": gradwire.adam(0.1)},
    }
    found = {}
    for name, codecs in given.items():
        try:
            gradwire.torch.ddp.attach(DistributedDataParallel(network()), codecs)
        except (ValueError, TypeError) as error:
            found[name] = f"{type(error).__name__}: {error}"
    return found


def by_steps(rank: int, world_size: int, dense: bool) -> dict[str, Any]:
    """The ratio at each step; a step undone at a boundary, and a resume in front of one."""
    schedule = BySteps(DenseWarmUp(1) if dense else WarmUp((0.5, 0.2)), steps=2)
    codec = gradwire.topk(ratio=0.05)
    options = {"schedule": schedule}

    def open_(module: torch.nn.Module) -> Any:
        return attached(module, codec, options=options, bucket_cap_mb=SMALL_BUCKETS)

    def run(model: Any, handle: Any, steps: range, look: Callable[[], None]) -> None:
        for step in steps:
            train(model, rank, range(step, step + 1))
            look()

    found: dict[str, Any] = {"ratios": []}
    with open_(network()) as (model, handle):
        run(model, handle, range(7), lambda: found["ratios"].append(ratios(handle)["0.weight"]))
        whole = fingerprint(model), plain(handle.state_dict())
    with open_(network()) as (model, handle):
        handle.epoch(5)  # as a trainer calls it: without effect
        run(model, handle, range(4), lambda: None)
        before = fingerprint(model)
        model.zero_grad()
        model(torch.ones(2, 32)).sum().backward()  # the step at a boundary, undone
        handle.discard()
        assert fingerprint(model) == before
        saved = model.module.state_dict(), handle.state_dict()
    with open_(network(seed=5)) as (model, handle):
        model.module.load_state_dict(saved[0])
        handle.load_state_dict(saved[1])
        run(model, handle, range(4, 7), lambda: None)
        found["same"] = whole == (fingerprint(model), plain(handle.state_dict()))
    return found | {"fingerprint": whole[0]}


def summed(rank: int, world_size: int) -> dict[str, float]:
    """Dense codecs by name over an all-reduce, each with its own quantizer."""
    codecs = {
        "0.weight": gradwire.Codec(
            sparsify=gradwire.sparsify.All(),
            quantize=gradwire.quantize.BFloat16(),
            exchange=AllReduce(),
        ),
        "3.weight": gradwire.randomk(ratio=0.5),
    }
    with attached(network(), codecs) as (model, handle):
        train(model, rank, range(3))
        return {"fingerprint": float(int(fingerprint(model)[:8], 16)), "step": handle.step}
