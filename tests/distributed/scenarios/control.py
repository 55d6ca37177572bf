"""Ranks that do different things between steps, or leave the loop by an exception."""

import contextlib
import time
from datetime import timedelta
from pathlib import Path
from typing import Any

from torch.nn.parallel import DistributedDataParallel

import gradwire
import gradwire.torch.ddp
from gradwire.torch.ddp import ExchangeError, Handle
from gradwire.torch.transport.process_group import _is_registered as is_registered
from tests.distributed.scenarios.common import (
    SMALL_BUCKETS,
    attached,
    fingerprint,
    network,
    reaches,
    train,
)
from tests.distributed.scenarios.failures import patience, told


def leaving_by_an_exception(rank: int, world_size: int, how: str) -> dict[str, Any]:
    """Rank 1 raises between two steps; the other one is in its backward pass meanwhile."""
    model = DistributedDataParallel(network(), bucket_cap_mb=SMALL_BUCKETS)
    start = time.monotonic()
    try:
        if how == "with":
            with gradwire.torch.ddp.attach(model, gradwire.topk(ratio=0.05)):
                _train_and_fail(model, rank)
        else:
            handle = gradwire.torch.ddp.attach(model, gradwire.topk(ratio=0.05))
            try:
                _train_and_fail(model, rank)
            finally:
                handle.detach()
    except (ExchangeError, ArithmeticError) as error:
        return {"error": type(error).__name__, "seconds": time.monotonic() - start}
    return {"error": "", "seconds": 0.0}


def _train_and_fail(model: Any, rank: int) -> None:
    train(model, rank, range(2))
    if rank == 1:
        raise ArithmeticError("trouble in the input pipeline")
    train(model, rank, range(2, 3))


def different_acts(rank: int, world_size: int, acts: list[str]) -> tuple[str, int]:
    """Each rank does something else between two steps."""
    model = DistributedDataParallel(network(), bucket_cap_mb=SMALL_BUCKETS)
    handle = gradwire.torch.ddp.attach(model, gradwire.topk(ratio=0.05))
    train(model, rank, range(2))
    text = ""
    try:
        _act(acts[rank], model, handle, rank)
    except ExchangeError as error:
        text = str(error)
    if "epoch" in acts and "load" in acts:  # both came to know of it, and may go on
        train(model, rank, range(2, 3))
    return text, handle.step


def _act(name: str, model: Any, handle: Handle, rank: int) -> None:
    if name == "epoch":
        handle.epoch(1)
    elif name == "load":
        handle.load_state_dict(handle.state_dict())
    elif name == "detach":
        handle.detach()
    elif name == "backward":
        train(model, rank, range(2, 3))


def detaching_alone(rank: int, world_size: int, folder: str) -> float:
    """Rank 0 detaches; rank 1 comes when nobody waits any more. Both train on without gradwire."""
    model = DistributedDataParallel(network())
    handle = gradwire.torch.ddp.attach(model, gradwire.topk(ratio=0.05))
    train(model, rank, range(2))
    left = Path(folder) / "left"
    assert rank == 0 or reaches(left.exists)
    start = time.monotonic()
    handle.detach(timedelta(seconds=0.5))
    seconds = time.monotonic() - start
    left.touch()
    train(model, rank, range(2, 4))
    return seconds


def half_way(rank: int, world_size: int) -> dict[str, Any]:
    """Rank 0 has a bucket under way that rank 1 never sends, and detaches."""
    model = DistributedDataParallel(network(), bucket_cap_mb=SMALL_BUCKETS)
    handle = gradwire.torch.ddp.attach(model, gradwire.topk(ratio=0.05))
    transport: Any = handle._engine._release.args[-1]
    made = list(transport._made)
    train(model, rank, range(2))
    found: dict[str, Any] = {"left": True}
    if rank == 0:

        def trouble(_: Any) -> None:
            raise ArithmeticError("trouble in the backward pass")

        with contextlib.suppress(ArithmeticError):
            model.module[0].weight.register_hook(trouble)
            train(model, rank, range(2, 3))
        start = time.monotonic()
        handle.detach(timedelta(seconds=0.5))
        found["seconds"] = time.monotonic() - start
        limit = 12 * patience().total_seconds()
        found["left"] = reaches(lambda: not any(map(is_registered, made)), limit)
        told().set("left", "")
    else:
        told().wait(["left"], 20 * patience())
        handle.detach(timedelta(seconds=0.5))
    return found


def as_a_context(rank: int, world_size: int) -> dict[str, Any]:
    """`with attach(...) as handle` detaches at its end; a plain DDP model is what is left."""
    with attached(network(), gradwire.topk(ratio=1.0)) as (reference, _):
        train(reference, rank, range(2))
    train(reference, rank, range(2, 4))
    model = DistributedDataParallel(network())
    with gradwire.torch.ddp.attach(model, gradwire.topk(ratio=1.0)) as handle:
        train(model, rank, range(2))
    train(model, rank, range(2, 4))
    return {
        "same": fingerprint(model) == fingerprint(reference),
        "steps": handle.step,
        "repr": repr(handle),
    }
