"""Compressed against plain DDP."""

import dataclasses
from typing import Any

import numpy as np
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

import gradwire
from gradwire.torch.transport.process_group import ProcessGroupChannel
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


def preset(
    name: str,
    *,
    quantize: str | tuple[str, dict[str, Any]] | None = None,
    memory: str | dict[str, Any] | None = None,
    exchange: str | None = None,
    **options: Any,
) -> Any:
    """Build a preset from plain values."""
    codec = getattr(gradwire, name)(**options)
    parts: dict[str, Any] = {}
    if quantize is not None:
        kind, its = (quantize, {}) if isinstance(quantize, str) else quantize
        parts["quantize"] = getattr(gradwire.quantize, kind)(**its)
    if isinstance(memory, dict):
        parts["memory"] = gradwire.memory.Memory.KINDS[memory["kind"]].from_config(memory)
    elif memory is not None:
        parts["memory"] = getattr(gradwire.memory, memory)()
    if exchange is not None:
        parts["exchange"] = getattr(gradwire.exchange, exchange)()
    return dataclasses.replace(codec, **parts)


def against_plain(rank: int, world_size: int, codec: tuple[str, dict[str, Any]]) -> float:
    """Train twice and return the largest difference of a parameter."""
    plain = DistributedDataParallel(network())
    train(plain, rank, range(6))
    name, options = codec
    with attached(network(), preset(name, **options)) as (model, _):
        train(model, rank, range(6))
    pairs = zip(plain.parameters(), model.parameters(), strict=True)
    return max(float((one - other).detach().abs().max()) for one, other in pairs)


def replicas(
    rank: int, world_size: int, codec: tuple[str, dict[str, Any]], ddp: dict[str, Any]
) -> tuple[str, float]:
    """Train and return the hash of the parameters, and the compression."""
    name, options = codec
    with attached(network(), preset(name, **options), **ddp) as (model, handle):
        train(model, rank, range(10))
        return fingerprint(model), handle.report().compression


def conservation(
    rank: int,
    world_size: int,
    ddp: dict[str, Any],
    options: dict[str, Any],
    codec: tuple[str, dict[str, Any]] = ("topk", {"ratio": 0.05}),
) -> dict[str, Any]:
    """Sum up what went in, what came out and what is left; integers, so the sums are exact."""
    name, arguments = codec
    given = {name: np.zeros(int(np.prod(shape))) for name, shape in SHAPES.items()}
    applied = {name: np.zeros_like(zero) for name, zero in given.items()}
    collectives = []
    with attached(Given(), preset(name, **arguments), options=options, **ddp) as (model, handle):
        for step in range(8):
            gradients = integers(1, rank, step)
            model.zero_grad()
            model(gradients).backward()
            for name, each in gradients.items():
                given[name] += each.numpy().ravel()
            for name, average in gradients_of(model.module).items():
                applied[name] += average * world_size
            collectives.append(handle.report().collectives)
        left = residuals(handle)
        trimmed = sum(each.trimmed for each in handle.report().parameters)
    counts = [after - before for before, after in zip([0, *collectives], collectives, strict=False)]
    return {
        "given": given,
        "applied": applied,
        "left": left,
        "collectives": counts,
        "trimmed": trimmed,
    }


def alone(rank: int, world_size: int) -> tuple[bool, float]:
    """One rank: what is sent is applied, and nothing crosses a wire."""
    with attached(network(), gradwire.topk(ratio=1.0)) as (model, handle):
        train(model, rank, range(3))
        plain = network()
        train(plain, rank, range(3))
        return fingerprint(plain) == fingerprint(model), handle.report().wire_bytes


def one_collective_a_bucket(rank: int, world_size: int) -> tuple[int, int, int]:
    """Count the collectives of a few steps of two ranks, and the buckets in them."""
    calls: list[str] = []
    buckets = 0
    ours = "all_gather", "all_to_all", "all_reduce", "broadcast", "gather", "all_gather_object"
    # What torch itself has, whoever calls it: two ranks gather by messages.
    torchs = (*ours, "all_gather_into_tensor", "barrier", "send", "recv")
    originals: dict[tuple[Any, str], Any] = {
        (ProcessGroupChannel, name): getattr(ProcessGroupChannel, name) for name in ours
    }
    originals |= {(dist, name): getattr(dist, name) for name in torchs if hasattr(dist, name)}

    def spy(of: Any, name: str) -> Any:
        def call(*arguments: Any, **keywords: Any) -> Any:
            calls.append(name if of is ProcessGroupChannel else f"torch's {name}")
            return originals[of, name](*arguments, **keywords)

        return call

    with attached(network(), gradwire.topk(ratio=0.01), bucket_cap_mb=SMALL_BUCKETS) as (
        model,
        handle,
    ):
        train(model, rank, range(3))
        for of, name in originals:
            setattr(of, name, spy(of, name))
        try:
            before = handle.report().collectives
            train(model, rank, range(3, 5))
            buckets = handle.report().collectives - before
        finally:
            for (of, name), original in originals.items():
                setattr(of, name, original)
    gathers = calls.count("all_gather")
    return buckets, gathers, len(calls) - gathers


def rounding(rank: int, world_size: int) -> dict[str, bytes]:
    """Equal gradients on all ranks, rounded stochastically: what a rank sent, and the average."""
    codec = gradwire.qsgd(bits=3, norm="max", memory=gradwire.memory.Residual())
    with attached(Given(), codec) as (model, handle):
        gradients = integers(1, 0, 0)
        model(gradients).backward()
        sent = gradients["a"].numpy().ravel() - residuals(handle)["a"]
        return {"sent": sent.tobytes(), "average": gradients_of(model.module)["a"].tobytes()}
