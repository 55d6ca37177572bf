"""PowerSGD: factors of low rank, with error feedback."""

import contextlib
import io
from typing import Any
from unittest import mock

import numpy as np
import torch
from torch.nn.parallel import DistributedDataParallel

import gradwire
import gradwire.torch.ddp
from gradwire._orthonormal import orthonormalize
from gradwire.exchange import LowRank
from gradwire.torch.ddp import ExchangeError, GradientError
from gradwire.torch.exchange.powersgd import PowerSGDExchange
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


def codec_of(rank: int = 2, *, keeps: bool = True, warm_start: bool = True) -> gradwire.Codec:
    memory = gradwire.memory.Residual() if keeps else gradwire.memory.NoMemory()
    return gradwire.dense(memory=memory, exchange=LowRank(rank, warm_start=warm_start))


def conserving(rank: int, world_size: int, keeps: bool) -> dict[str, Any]:
    """Some steps: what was applied and what is left; the rank of what was applied.

    Products are computed a few rows after the other, as those of large matrices are.
    """
    with mock.patch("gradwire.torch.exchange.powersgd._BLOCK", 150):
        return _conserving(rank, world_size, keeps=keeps)


def _conserving(rank: int, world_size: int, *, keeps: bool) -> dict[str, Any]:
    given = {name: np.zeros(int(np.prod(shape))) for name, shape in SHAPES.items()}
    applied = {name: np.zeros_like(zero) for name, zero in given.items()}
    found: dict[str, Any] = {"ranks": []}
    with attached(Given(), codec_of(keeps=keeps), bucket_cap_mb=SMALL_BUCKETS) as (model, handle):
        for step in range(4):
            gradients = integers(23, rank, step)
            model.zero_grad()
            model(gradients).backward()
            for name, each in gradients.items():
                given[name] += each.numpy().ravel()
            for name, average in gradients_of(model.module).items():
                applied[name] += average * world_size
            grad: Any = model.module.a.grad
            found["ranks"].append(int(torch.linalg.matrix_rank(grad.double(), rtol=1e-4)))
        report = handle.report()
        found["dense"] = {each.name for each in report.parameters if each.dense}
        found["collectives"] = report.collectives
        found["wire"] = report.wire_bytes
        left = residuals(handle)
    return found | {"given": given, "applied": applied, "left": left}


def steps(rank: int, world_size: int) -> list[dict[str, dict[str, np.ndarray]]]:
    """Return what each matrix was, what became the average, and what was left of it."""
    found = []
    with attached(Given(), codec_of(), bucket_cap_mb=SMALL_BUCKETS) as (model, handle):
        for step in range(3):
            before = residuals(handle)
            gradients = integers(29, rank, step)
            model.zero_grad()
            model(gradients).backward()
            averages, after = gradients_of(model.module), residuals(handle)
            matrices = {name: before[name] + gradients[name].numpy().ravel() for name in ("a", "b")}
            found.append(
                {
                    "matrix": matrices,
                    "average": {name: averages[name] for name in matrices},
                    "left": {name: after[name] for name in matrices},
                }
            )
    return found


def exact(rank: int, world_size: int) -> float:
    """The average has rank 2, though no rank's gradient has: the error of one step."""
    random = np.random.default_rng(5)
    noise = random.standard_normal((64, 40))
    factors = [random.standard_normal((64, 2)), random.standard_normal((2, 40))]
    mean = factors[0] @ factors[1]
    own = mean + (noise if rank == 0 else -noise)
    with attached(Given(), codec_of()) as (model, _):
        gradients = integers(1, rank, 0)
        gradients["a"] = torch.from_numpy(own.astype(np.float32))
        model(gradients).backward()
        found: Any = model.module.a.grad
        return float(np.abs(found.double().numpy() - mean).max())


def resumed(rank: int, world_size: int, keeps: bool, warm_start: bool) -> dict[str, Any]:
    """Six steps, and three and three with a checkpoint between; then with sum-and-split."""
    codec = codec_of(keeps=keeps, warm_start=warm_start)

    def run(steps: range, saved: bytes | None = None) -> tuple[Any, ...]:
        model = DistributedDataParallel(network(), bucket_cap_mb=SMALL_BUCKETS)
        with gradwire.torch.ddp.attach(model, codec) as handle:
            if saved is not None:
                loaded = torch.load(io.BytesIO(saved), weights_only=True)
                model.module.load_state_dict(loaded["model"])
                handle.load_state_dict(loaded["gradwire"])
            train(model, rank, steps)
            file = io.BytesIO()
            parts = {"model": model.module, "gradwire": handle}
            torch.save({name: each.state_dict() for name, each in parts.items()}, file)
            return fingerprint(model), plain(handle.state_dict()), file.getvalue()

    whole = run(range(6))
    rest = run(range(3, 6), run(range(3))[-1])
    return {"same": whole[:2] == rest[:2], "fingerprint": whole[0]}


def failing(rank: int, world_size: int) -> dict[str, Any]:
    """A gradient that is not finite on one rank, without a scaler and with one; discard()."""
    found: dict[str, Any] = {}
    with attached(Given(), codec_of(), bucket_cap_mb=SMALL_BUCKETS) as (model, handle):
        model(integers(2, rank, 0)).backward()
        before = plain(handle.state_dict())
        bad = integers(2, rank, 1)
        if rank == 1:
            bad["b"][3, 4] = float("nan")
        model.zero_grad()
        try:
            model(bad).backward()
        except GradientError as error:
            found["error"] = error.name, error.rank, error.count, error.first
        found["undone"] = plain(handle.state_dict()) == before
        model.zero_grad()
        model(integers(2, rank, 2)).backward()
        found["step"] = handle.step
        handle.discard()
        found["discarded"] = plain(handle.state_dict()) == before
    scaler = torch.amp.GradScaler("cpu", init_scale=4.0)
    with attached(network(), codec_of(), options={"grad_scaler": scaler}) as (model, handle):
        train(model, rank, range(2), scaler=scaler)
        before = plain(handle.state_dict())
        scale = scaler.get_scale()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        optimizer.zero_grad()
        inputs = torch.full((2, 32), float("inf") if rank == 1 else 1.0)
        scaler.scale(model(inputs).sum()).backward()
        scaler.step(optimizer)
        scaler.update()
        found["halved"] = scaler.get_scale() < scale
        found["kept"] = plain(handle.state_dict()) == before
        train(model, rank, range(2, 4), scaler=scaler)
        found["fingerprint"] = fingerprint(model)
    return found


def rounding_differs(rank: int, world_size: int) -> dict[str, Any]:
    """One rank rounds one entry of P another way in one step: what all raise, and keep."""
    original = orthonormalize

    def another(columns: np.ndarray) -> None:
        original(columns)
        columns[-1, -1] = np.nextafter(columns[-1, -1], np.float32(2))

    found: dict[str, Any] = {"errors": []}
    with attached(Given(), codec_of(), bucket_cap_mb=SMALL_BUCKETS) as (model, handle):
        for step in range(2):
            before = plain(handle.state_dict())
            model.zero_grad()
            patch: Any = contextlib.nullcontext()
            if step == 1 and rank == 1:
                patch = mock.patch(f"{PowerSGDExchange.__module__}.orthonormalize", another)
            with patch:
                try:
                    model(integers(4, rank, step)).backward()
                except ExchangeError as error:
                    found["errors"].append((step, str(error)))
                    found["undone"] = plain(handle.state_dict()) == before
    return found


def unused(rank: int, world_size: int) -> dict[str, bool]:
    """A parameter that no rank uses keeps its residual."""
    with attached(Given(), codec_of(), find_unused_parameters=True) as (model, handle):
        model(integers(3, rank, 0)).backward()
        before = residuals(handle)
        model.zero_grad()
        names = [name for name in SHAPES if name != "a"]
        model(integers(3, rank, 1, names)).backward()
        after = residuals(handle)
        same = {name: np.array_equal(before[name], after[name]) for name in ("a", "b")}
        return same | {"any": bool(before["a"].any())}
