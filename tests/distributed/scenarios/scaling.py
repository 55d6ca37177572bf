"""Loss scaling: steps that do not count."""

import warnings
from typing import Any

import numpy as np
import torch

import gradwire
import gradwire.torch.ddp
from gradwire.torch.ddp import GradientError
from tests.distributed.scenarios.common import (
    SHAPES,
    SMALL_BUCKETS,
    Given,
    attached,
    fingerprint,
    gradients_of,
    integers,
    network,
    residuals,
    train,
)
from tests.distributed.scenarios.parity import preset

TOPK: tuple[str, dict[str, Any]] = ("topk", {"ratio": 0.05})


def scaled_like_unscaled(rank: int, world_size: int) -> tuple[bool, list[float]]:
    """Train with a scale that grows on the way, and without: powers of two change no bit."""
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0, growth_interval=2)
    scales = []
    with attached(network(), gradwire.topk(ratio=0.05)) as (plain, _):
        train(plain, rank, range(6))
    with attached(network(), gradwire.topk(ratio=0.05), options={"grad_scaler": scaler}) as (
        model,
        _,
    ):
        for step in range(6):
            train(model, rank, range(step, step + 1), scaler=scaler)
            scales.append(scaler.get_scale())
    return fingerprint(plain) == fingerprint(model), scales


def bad_step(
    rank: int,
    world_size: int,
    bad: str,
    value: float,
    ddp: dict[str, Any],
    codec: tuple[str, dict[str, Any]] = TOPK,
) -> dict[str, Any]:
    """Poison one entry of one parameter on the last rank, in step 3 of 5."""
    module = Given()
    scaler = torch.amp.GradScaler("cpu", init_scale=8.0, growth_interval=1000)
    optimizers = [  # two of them: a bad gradient of one must make the other skip as well
        torch.optim.SGD([module.get_parameter(name) for name in names], lr=1.0)
        for names in (("a", "c"), ("b", "bias", "scalar"))
    ]
    given = {name: np.zeros(int(np.prod(shape))) for name, shape in SHAPES.items()}
    before: dict[str, np.ndarray] = {}
    found: dict[str, Any] = {}
    name, arguments = codec
    options = {"grad_scaler": scaler}
    with attached(module, preset(name, **arguments), options=options, **ddp) as (model, handle):
        for step in range(5):
            gradients = integers(6, rank, step)
            is_bad = step == 2
            if is_bad:
                before = residuals(handle)
                frozen = fingerprint(model)
                if rank == world_size - 1:
                    gradients[bad].view(-1)[-1] = value
            else:
                for name, each in gradients.items():
                    given[name] += each.numpy().ravel()
            model.zero_grad()
            scaler.scale(model(gradients)).backward()
            if is_bad:
                found["all_bad"] = all(
                    not np.isfinite(each).any() for each in gradients_of(module).values()
                )
                after = residuals(handle)
                found["rolled_back"] = all(
                    before[name].tobytes() == after[name].tobytes() for name in before
                )
                found["had_residuals"] = all(each.any() for each in before.values())
            for optimizer in optimizers:
                scaler.step(optimizer)
            scaler.update()
            if is_bad:
                found["skipped"] = fingerprint(model) == frozen
                found["scale"] = scaler.get_scale()
        found["error"] = str(handle.error)
        found["left"] = residuals(handle)
        found["collectives"] = handle.report().collectives
    found["given"] = given
    found["applied"] = {
        name: -each.detach().double().numpy().ravel() * world_size
        for name, each in module.named_parameters()
    }
    found["fingerprint"] = fingerprint(module)
    return found


def overflowing_average(rank: int, world_size: int) -> dict[str, Any]:
    """Finite float16 gradients on every rank, whose average with the residual is too large."""
    scaler = torch.amp.GradScaler("cpu", init_scale=1.0)
    module = Given({"a": torch.float16})
    found: dict[str, Any] = {}
    with attached(
        module,
        gradwire.topk(k=1),
        options={"grad_scaler": scaler},
        bucket_cap_mb=SMALL_BUCKETS,
    ) as (model, handle):
        for step in range(2):
            gradients = integers(7, rank, step)
            gradients["a"] = torch.zeros(SHAPES["a"])
            gradients["a"][0, :2] = torch.tensor([60000.0, 49984.0])  # the second has to wait
            if step == 1:
                before = residuals(handle)
                gradients["a"][0, 0] = 0.0
            model.zero_grad()
            scaler.scale(model(gradients)).backward()
        after = residuals(handle)
        found["was_waiting"] = float(before["a"][1])
        found["all_bad"] = all(
            not np.isfinite(each).any() for each in gradients_of(module).values()
        )
        found["rolled_back"] = all(
            before[name].tobytes() == after[name].tobytes() for name in before
        )
    return found


def without_scaler(
    rank: int, world_size: int, bad: str, codec: tuple[str, dict[str, Any]] = TOPK
) -> dict[str, Any]:
    """A NaN on the last rank, nobody to skip the step: every rank hears of it and may go on."""
    found: dict[str, Any] = {}
    given = {name: np.zeros(int(np.prod(shape))) for name, shape in SHAPES.items()}
    applied = {name: np.zeros_like(zero) for name, zero in given.items()}
    name, arguments = codec
    with attached(Given(), preset(name, **arguments), bucket_cap_mb=SMALL_BUCKETS) as (
        model,
        handle,
    ):
        for step in range(5):
            gradients = integers(8, rank, step)
            before = residuals(handle)
            if step == 2 and rank == world_size - 1:
                gradients[bad].view(-1)[3:5] = torch.nan
            model.zero_grad()
            try:
                model(gradients).backward()
            except GradientError as kept:
                assert type(handle.error) is GradientError
                after = residuals(handle)
                found["step"] = step
                found["text"] = str(kept)
                found["typed"] = (
                    kept.name,
                    kept.rank,
                    kept.count,
                    kept.first,
                )
                found["rolled_back"] = all(
                    before[name].tobytes() == after[name].tobytes() for name in before
                )
                continue
            for name, average in gradients_of(model.module).items():
                applied[name] += average * world_size
                given[name] += gradients[name].numpy().ravel()
        found["left"] = residuals(handle)
    return {**found, "given": given, "applied": applied}


def forgotten(rank: int, world_size: int, codec: str) -> list[str]:
    """The warnings of 3 steps with a loss scaler that was not given to `attach`."""
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    given: dict[str, Any] = {"adam": {}, "dgc": {"momentum": 0.9}}[codec]
    kind: Any = {"adam": torch.optim.AdamW, "dgc": torch.optim.SGD}[codec]
    model = torch.nn.parallel.DistributedDataParallel(network())
    optimizer = kind(model.parameters(), lr=1e-3, **given)
    with (
        warnings.catch_warnings(record=True) as caught,
        gradwire.torch.ddp.attach(model, codec, optimizer=optimizer, min_numel=65),
    ):
        warnings.simplefilter("always")
        train(model, rank, range(3), scaler=scaler, optimizer=optimizer)
    return [str(each.message) for each in caught]
