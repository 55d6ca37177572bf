"""Training with a preset: equal replicas, failures that leave no trace, checkpoints."""

import contextlib
import io
from typing import Any

import torch
from torch.optim import SGD, AdamW

import gradwire
from gradwire.exchange import AllGather
from gradwire.memory import LowPass
from gradwire.presets import PRESETS
from gradwire.sparsify import TopK
from gradwire.torch.ddp import GradientError
from tests.distributed.scenarios.common import (
    SMALL_BUCKETS,
    attached,
    fingerprint,
    network,
    plain,
    train,
)
from tests.outside_parts import Dithered, Halves, Nested


def every_promise(rank: int, world_size: int, name: str) -> dict[str, Any]:
    """What a preset's example does."""
    preset = PRESETS[name]
    return _promises(rank, world_size, preset.build(**preset.example))


def outside_parts(rank: int, world_size: int, name: str) -> dict[str, Any]:
    """What a codec with values that are coded in Python does."""
    codecs = {
        "values": gradwire.Codec(sparsify=TopK(ratio=0.05), quantize=Halves()),
        "dense": gradwire.dense(quantize=Dithered(), memory=LowPass(0.5)),
        "nested": gradwire.dense(quantize=Nested()),
        "senders": gradwire.Codec(
            sparsify=TopK(ratio=0.05), quantize=Halves(), exchange=AllGather(mean="senders")
        ),
    }
    return _promises(rank, world_size, codecs[name])


def _promises(rank: int, world_size: int, codec: gradwire.Codec) -> dict[str, Any]:
    """Train; fail in the middle on the last rank; go on; and once more from a checkpoint."""
    module = network()
    optimizer = _optimizer(codec, module)
    options = {"optimizer": optimizer}
    with attached(module, codec, options=options, bucket_cap_mb=SMALL_BUCKETS) as (model, handle):
        train(model, rank, range(3), optimizer=optimizer)
        before = plain(handle.state_dict())
        _fail(model, spoil=rank == world_size - 1)
        told = handle.error
        after = plain(handle.state_dict())
        middle = _saved(
            {
                "model": model.module.state_dict(),
                "gradwire": handle.state_dict(),
                "optimizer": optimizer.state_dict(),
            }
        )
        train(model, rank, range(3, 6), optimizer=optimizer)
        whole = fingerprint(model)
        report = handle.report()
    module = network(seed=99)
    loaded = torch.load(io.BytesIO(middle), weights_only=True)
    module.load_state_dict(loaded["model"])
    optimizer = _optimizer(codec, module)
    optimizer.load_state_dict(loaded["optimizer"])
    options = {"optimizer": optimizer}
    with attached(module, codec, options=options, bucket_cap_mb=SMALL_BUCKETS) as (model, handle):
        handle.load_state_dict(loaded["gradwire"])
        train(model, rank, range(3, 6), optimizer=optimizer)
        resumed = fingerprint(model)
    return {
        "told": (type(told).__name__, getattr(told, "rank", None)),
        "no_trace": before == after,
        "whole": whole,
        "resumed": resumed,
        "sent": report.wire_bytes,
    }


def _optimizer(codec: gradwire.Codec, module: torch.nn.Module) -> torch.optim.Optimizer:
    """The optimizer that goes with a codec."""
    if codec.memory.updates:
        return AdamW(module.parameters(), lr=0.01)
    return SGD(module.parameters(), lr=0.05, momentum=0.9 if codec.memory.corrects else 0.0)


def _saved(what: dict[str, Any]) -> bytes:
    buffer = io.BytesIO()
    torch.save(what, buffer)
    return buffer.getvalue()


def _fail(model: torch.nn.Module, *, spoil: bool) -> None:
    """Run a backward whose gradient is not finite on one rank."""
    model.zero_grad()
    with contextlib.suppress(GradientError):
        model(torch.full((4, 32), torch.inf if spoil else 1.0)).sum().backward()
