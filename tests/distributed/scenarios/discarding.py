"""Programs that throw gradients away: what of them stays in the residuals, and what must not."""

import contextlib
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import gradwire
import gradwire.torch.ddp
from gradwire.schedule import Accordion
from gradwire.torch.ddp import ExchangeError, Handle
from tests.distributed.scenarios.common import (
    SMALL_BUCKETS,
    Given,
    attached,
    batch,
    bits,
    fingerprint,
    gradients_of,
    integers,
    network,
    train,
)
from tests.distributed.scenarios.exchanges import exchanged
from tests.distributed.scenarios.parity import preset


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _plain(each) for key, each in value.items()}
    return bits(value) if isinstance(value, torch.Tensor) else value


def without_a_trace(
    rank: int,
    world_size: int,
    codec: tuple[str, dict[str, Any]] | str,
    ddp: dict[str, Any],
    discards: bool = True,
) -> dict[str, Any]:
    """Train with passes in between that are discarded or paused, and without: no bit differs."""
    made = exchanged(codec) if isinstance(codec, str) else preset(codec[0], **codec[1])
    options = {"schedule": Accordion(0.2, 0.05, interval=1)} if codec == "senders" else {}
    prints, states, same = [], [], []
    for extra in (False, True):
        with attached(network(), made, options=options, bucket_cap_mb=SMALL_BUCKETS, **ddp) as (
            model,
            handle,
        ):
            for step in range(6):
                if options and step in (2, 4):
                    handle.epoch(step // 2)
                if extra:
                    before = _plain(handle.state_dict())
                    _waste(model, handle, rank, step, paused=not discards or step % 2 == 1)
                    same.append(before == _plain(handle.state_dict()))
                train(model, rank, range(step, step + 1))
            prints.append(fingerprint(model))
            states.append(_plain(handle.state_dict()))
    return {"prints": prints, "same": same, "states_equal": states[0] == states[1]}


def _waste(model: Any, handle: Handle, rank: int, step: int, *, paused: bool) -> None:
    with handle.paused() if paused else contextlib.nullcontext():
        for again in range(2):
            model.zero_grad()
            model(batch(rank, 50 + 2 * step + again)[0]).square().mean().backward()
            if not paused:
                handle.discard()


def skipping(rank: int, world_size: int, how: str) -> dict[str, Any]:
    """Skip a step if the norm exceeds 10; one batch in the middle is bad."""
    torch.manual_seed(0)
    teacher = nn.Linear(32, 16)
    model: Any = DistributedDataParallel(network(), bucket_cap_mb=SMALL_BUCKETS)
    codec = gradwire.topk(ratio=0.05)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    seen = optimizer if how == "optimizer" else None
    handle = None
    if how != "dense":
        handle = gradwire.torch.ddp.attach(model, codec, optimizer=seen)
    skipped, loss = [], torch.zeros(())
    for step in range(80):
        inputs = batch(rank, step, rows=32)[0]
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(model(inputs), teacher(inputs).detach())
        (loss * (1e4 if step == 20 else 1.0)).backward()
        if nn.utils.clip_grad_norm_(model.parameters(), float("inf")) > 10.0:
            skipped.append(step)
            if how == "discard" and handle is not None:
                handle.discard()
            continue
        optimizer.step()
    if handle is not None:
        handle.detach()
    inputs = batch(7, 1000, rows=256)[0]
    with torch.no_grad():
        loss = nn.functional.mse_loss(model.module(inputs), teacher(inputs))
    return {"skipped": skipped, "loss": float(loss), "print": fingerprint(model)}


def edges(rank: int, world_size: int) -> dict[str, Any]:
    """What discard() and paused() do where there is nothing for them to do, or ranks differ."""
    found: dict[str, Any] = {}

    def attempt(name: str, call: Any) -> None:
        try:
            call()
            found[name] = "fine"
        except (ValueError, ExchangeError) as error:
            found[name] = f"{type(error).__name__}: {error}"

    scaler = torch.amp.GradScaler("cpu", init_scale=8.0)
    with attached(
        Given(), gradwire.topk(ratio=0.05), options={"grad_scaler": scaler}, bucket_cap_mb=0.01
    ) as (model, handle):
        attempt("before the first", handle.discard)
        scaler.scale(model(integers(1, rank, 0))).backward()
        attempt("once", handle.discard)
        attempt("twice", handle.discard)
        bad = integers(1, rank, 1)
        bad["a"][0, 0] = torch.inf if rank == 0 else 1.0
        scaler.scale(model(integers(1, rank, 1))).backward()
        before = _plain(handle.state_dict())
        model.zero_grad()
        scaler.scale(model(bad)).backward()
        attempt("skipped by the scaler", handle.discard)
        with handle.paused():
            model.zero_grad()
            scaler.scale(model(bad)).backward()
            found["bad in a pause"] = not np.isfinite(gradients_of(model.module)["a"]).all()
        attempt("paused", handle.discard)
        with handle.paused(), handle.paused():
            model.zero_grad()
            scaler.scale(model(integers(1, rank, 2))).backward()
            found["mean"] = gradients_of(model.module)["c"] / 8.0
        found["untouched"] = before == _plain(handle.state_dict())
        found["steps"] = handle.step
        scaler.scale(model(integers(1, rank, 3))).backward()
        handle.epoch(1)
        attempt("after an epoch", handle.discard)
    attempt("detached", handle.discard)
    attempt("pause detached", handle.paused().__enter__)
    return found


def alone(rank: int, world_size: int, what: str) -> str:
    """Only rank 0 pauses or discards; the other one runs its next backward pass."""
    model = DistributedDataParallel(network(), bucket_cap_mb=SMALL_BUCKETS)
    handle = gradwire.torch.ddp.attach(model, gradwire.topk(ratio=0.05))
    train(model, rank, range(2))
    try:
        if rank == 0 and what == "discard":
            handle.discard()
        with handle.paused() if rank == 0 and what == "pause" else contextlib.nullcontext():
            train(model, rank, range(2, 3))
    except ExchangeError as error:
        return str(error)
    return ""
