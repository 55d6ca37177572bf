"""How often a step enters the compiled part, and sparsifiers in Python beside it."""

import contextlib
import dataclasses
from collections import Counter
from collections.abc import Iterator
from typing import Any, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray

import gradwire
from gradwire import _native, extension
from gradwire.memory import Residual
from gradwire.torch.ddp import GradientError
from tests.distributed.scenarios.common import (
    SHAPES,
    Given,
    attached,
    gradients_of,
    integers,
    network,
    plain,
    train,
)
from tests.distributed.scenarios.parity import preset

CALLS = ("encode_bucket", "average_bucket", "read_bucket", "decode_add", "Frame")


@dataclasses.dataclass(frozen=True, repr=False)
class Above(extension.Sparsifier):
    """What exceeds a threshold, selected in Python."""

    kind: ClassVar[str] = "test_above"
    threshold: float = 0.0

    def select(self, values: NDArray[np.float32], *, step: int, key: int) -> NDArray[Any]:
        return np.flatnonzero(np.abs(values) > self.threshold)


def of_a_step(
    rank: int, world_size: int, codec: tuple[str, dict[str, Any]] | None
) -> dict[str, Any]:
    """Count the calls of three steps of a network with several parameters in each bucket."""
    if codec is None:
        used = gradwire.Codec(sparsify=Above(0.01))
    else:
        name, options = codec
        used = preset(name, **options)
    with attached(network(), used, options={"min_numel": 1}) as (model, handle):
        train(model, rank, range(2))
        before = handle.metrics()["collectives"]
        with counted() as calls:
            train(model, rank, range(2, 5))
        buckets = handle.metrics()["collectives"] - before
    return {"buckets": buckets, "calls": dict(calls)}


@contextlib.contextmanager
def counted() -> Iterator["Counter[str]"]:
    """Count the calls of some functions of the compiled part."""
    calls: Counter[str] = Counter()
    originals = {name: getattr(_native, name) for name in CALLS}

    def spy(name: str) -> Any:
        def call(*arguments: Any, **keywords: Any) -> Any:
            calls[name] += 1
            return originals[name](*arguments, **keywords)

        return call

    for name in originals:
        setattr(_native, name, spy(name))
    try:
        yield calls
    finally:
        for name, original in originals.items():
            setattr(_native, name, original)


def mixed(
    rank: int, world_size: int, dtype: str, scaled: bool
) -> dict[str, dict[str, list[float]]]:
    """Averages of a threshold selected in Python and by the core, of one element type."""
    found = {}
    both: dict[str, Any] = {"python": Above(9.0), "core": gradwire.sparsify.Threshold(9.0)}
    for name, sparsify in both.items():
        codec = gradwire.Codec(sparsify=sparsify, memory=Residual())
        module = Given(dict.fromkeys(SHAPES, getattr(torch, dtype)))
        scaler = torch.amp.GradScaler("cpu", init_scale=8.0) if scaled else None
        options = {"min_numel": 1, "grad_scaler": scaler}
        with attached(module, codec, options=options) as (model, _):
            for step in range(3):
                model.zero_grad()
                loss = model(integers(3, rank, step))
                (loss if scaler is None else scaler.scale(loss)).backward()
            scale = 1.0 if scaler is None else scaler.get_scale()
            gradients = gradients_of(model.module)
        found[name] = {key: (each / scale).tolist() for key, each in gradients.items()}
    return found


def failed(rank: int, world_size: int) -> dict[str, Any]:
    """A gradient that is not finite, in the middle of a bucket, on the last rank."""
    codec = gradwire.topk(ratio=0.1)
    with attached(Given(), codec, options={"min_numel": 1}) as (model, handle):
        model(integers(5, rank, 0)).backward()
        before = plain(handle.state_dict())
        gradients = integers(5, rank, 1)
        if rank == world_size - 1:
            gradients["b"][2, 1] = torch.nan
        with contextlib.suppress(GradientError):
            model(gradients).backward()
        told = handle.error
        return {
            "told": (getattr(told, "name", None), getattr(told, "first", None)),
            "same": before == plain(handle.state_dict()),
        }


def held(rank: int, world_size: int) -> tuple[list[int], int]:
    """Bytes of the buffers for slots after each of some steps, and the entries of the model."""
    codec = gradwire.threshold(threshold=10.0)
    nbytes = []
    with attached(network(), codec, options={"min_numel": 1}) as (model, handle):
        exchange: Any = handle._engine.exchange
        for step in range(8):
            train(model, rank, range(step, step + 1))
            handle.metrics()
            nbytes.append(exchange._frames.nbytes + exchange._buffers.nbytes)
        return nbytes, sum(each.numel() for each in model.parameters())
