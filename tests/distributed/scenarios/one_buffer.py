"""Memories in one buffer: the same training as with two, and what cannot be undone."""

import contextlib
import dataclasses
from typing import Any

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.optim import SGD, AdamW

import gradwire
import gradwire.torch.ddp
from gradwire.torch.ddp import ExchangeError, GradientError, Handle, UndoError
from tests.distributed.scenarios.calls import Above
from tests.distributed.scenarios.common import (
    SMALL_BUCKETS,
    Given,
    attached,
    batch,
    bits,
    fingerprint,
    integers,
    network,
    residuals,
    timeline,
)
from tests.distributed.scenarios.errors import Branched
from tests.distributed.scenarios.parity import preset
from tests.outside_parts import Halves

Codec = tuple[str, dict[str, Any]]

TOPK = gradwire.topk(ratio=0.05, memory=gradwire.memory.Residual(low_memory=True))


def in_one(codec: gradwire.Codec) -> gradwire.Codec:
    """The same codec with one buffer."""
    memory: Any = codec.memory
    return dataclasses.replace(codec, memory=dataclasses.replace(memory, low_memory=True))


def _optimizer(codec: gradwire.Codec, module: nn.Module) -> Any:
    if codec.memory.updates:
        return AdamW(module.parameters(), lr=0.01)
    return SGD(module.parameters(), lr=0.05, momentum=0.0)


def _left(handle: Handle) -> list[Any]:
    """All that a checkpoint has, but for the number of buffers."""
    (saved,) = handle.state_dict().values()
    return [
        values.replace('"low_memory": true', '"low_memory": false')
        if isinstance(values, str)
        else (kind, [(name, bits(each)) for name, each in values.items()])
        for kind, values in saved.items()
    ]


def twins(
    rank: int, world_size: int, codec: Codec, ddp: dict[str, Any], how: str = ""
) -> dict[str, Any]:
    """Train with two buffers and with one; return whether each step has left the same bits.

    How: with a branch that some ranks use (unused), passes without synchronisation before each
    step (no_sync) or nothing but them (held), gradients added up over passes (accumulated), a
    loss scaler and a bad gradient on one rank (scaled), uneven inputs (join), or epochs.
    """
    name, arguments = codec
    two = gradwire.Codec(sparsify=Above(0.01)) if name == "above" else preset(name, **arguments)
    trails: list[list[Any]] = []
    sizes = []
    for made in (two, in_one(two)):
        torch.manual_seed(3)
        module = Branched()
        began = fingerprint(module)
        optimizer = _optimizer(made, module)
        scaler = torch.amp.GradScaler("cpu", init_scale=8.0, growth_interval=3)
        options: dict[str, Any] = {"optimizer": optimizer, "min_numel": 64}
        if how == "scaled":
            options["grad_scaler"] = scaler
        if how == "epochs":
            options["schedule"] = gradwire.schedule.WarmUp((0.5, 0.2, 0.1))
        trail: list[Any] = []
        arguments = {"bucket_cap_mb": SMALL_BUCKETS, **ddp}
        with attached(module, made, options=options, **arguments) as (model, handle):
            with model.join() if how == "join" else contextlib.nullcontext():
                for step in range(6 + 2 * rank * (how == "join")):
                    if how == "epochs" and step % 2 == 0:
                        handle.epoch(step // 2)
                    _step(model, optimizer, scaler, rank, step, how)
                    if how != "join":
                        trail.append((fingerprint(model), _left(handle), handle.step))
            trail.append((fingerprint(model), _left(handle), handle.step))
            report = handle.report()
            sizes.append(
                [(each.numel, each.state_bytes) for each in report.parameters if not each.dense]
            )
            counts = [each.steps for each in report.parameters]
            trail.append((report.collectives, report.wire_bytes, counts))
            trail.append(timeline(report))
        trails.append(trail)
    return {
        "same": [one == other for one, other in zip(*trails, strict=True)],
        "print": trails[1][-3][0],
        "trained": trails[1][-3][0] != began,
        "bytes": [[size / numel for numel, size in each] for each in sizes],
    }


def _step(
    model: DistributedDataParallel, optimizer: Any, scaler: Any, rank: int, step: int, how: str
) -> None:
    optimizer.zero_grad(set_to_none=step % 2 == 0)
    if how in ("no_sync", "held"):
        with model.no_sync():
            model(batch(rank, 100 + step)[0]).backward()
    if how == "held":
        optimizer.step()
        return
    if how == "accumulated":
        model(batch(rank, 200 + step)[0]).backward()
    branch = how != "unused" or (step != 2 and (step + rank) % 3 != 0)
    loss = model(batch(rank, step)[0], branch=branch)
    if how == "scaled":
        bad = step in (1, 4) and rank == step % 2
        scaler.scale(loss * (torch.inf if bad else 1.0)).backward()
        scaler.step(optimizer)
        scaler.update()
    else:
        loss.backward()
        optimizer.step()


def undoing(rank: int, world_size: int) -> dict[str, Any]:
    """What would undo a pass that counted: it is refused, and changes nothing."""
    found: dict[str, Any] = {}

    def attempt(name: str, call: Any, handle: Handle) -> None:
        before = _states(handle)
        try:
            call()
            found[name] = "fine"
        except (UndoError, ValueError) as error:
            found[name] = f"{type(error).__name__}: {error}"
        found[name + " changed"] = _states(handle) != before

    module = network()
    optimizer = SGD(module.parameters(), lr=0.05, momentum=0.0)
    with attached(module, TOPK, options={"optimizer": optimizer}, bucket_cap_mb=SMALL_BUCKETS) as (
        model,
        handle,
    ):

        def a_pass(step: int, loss: float = 1.0) -> None:
            (loss * model(batch(rank, step)[0]).square().mean()).backward()

        a_pass(0)
        optimizer.step()
        optimizer.zero_grad()
        attempt("discard", handle.discard, handle)
        a_pass(1)
        attempt("state_dict", handle.state_dict, handle)
        attempt("epoch", lambda: handle.epoch(1), handle)
        optimizer.step()
        attempt("after step", handle.state_dict, handle)
        optimizer.zero_grad()
        a_pass(2)
        optimizer.zero_grad()
        counted = handle.step
        attempt("next pass", lambda: a_pass(3), handle)
        found["counted"] = handle.step - counted
        optimizer.zero_grad()
        attempt("the one after", lambda: a_pass(4), handle)
        optimizer.step()
        optimizer.zero_grad()
        with handle.paused():
            a_pass(5)
        attempt("paused", handle.discard, handle)
        optimizer.zero_grad()
        try:
            a_pass(6, torch.nan)
        except GradientError:
            attempt("rolled back", handle.discard, handle)
        optimizer.zero_grad()
        a_pass(7)
        optimizer.step()
        found["print"] = fingerprint(model)
    return found


def _states(handle: Handle) -> list[bytes]:
    """The residuals, whatever the optimizer has done."""
    parameters: Any = handle._parameters.values()
    handle._pipeline.flush()
    return [each.state.residual.tobytes() for each in parameters if each.state is not None]


def damaged(rank: int, world_size: int, how: str) -> dict[str, Any]:
    """Damage a frame on its way in step 2, or fail to settle; what is left, and what is said."""
    found: dict[str, Any] = {}
    with attached(Given(), TOPK, bucket_cap_mb=SMALL_BUCKETS) as (model, handle):
        exchange: Any = handle._engine.exchange
        for step in range(3):
            before = _states(handle)
            saved = residuals(handle)
            if step == 2:
                _spoil(exchange, how, rank)
            model.zero_grad()
            try:
                model(integers(6, rank, step)).backward()
            except ExchangeError as error:
                found["error"] = str(error)
        found["whole"] = _states(handle) == before
        try:
            found["saved"] = residuals(handle).keys() == saved.keys()
        except ExchangeError as error:
            found["saved"] = str(error)
        grads: list[Any] = [each.grad for each in model.parameters()]
        found["infinite"] = all(bool(each.isinf().all()) for each in grads)
    return found


def _spoil(exchange: Any, how: str, rank: int) -> None:
    decode, settle = exchange._decode, exchange._commit
    buckets = 0

    def flipped(task: Any, contents: Any, **options: Any) -> None:
        nonlocal buckets
        buckets += 1
        if buckets == 2:
            contents.gathered[contents.plan.frames_at + 60] ^= 255  # in the first frame of rank 0
        decode(task, contents, **options)

    def failing(task: Any, contents: Any) -> None:
        nonlocal buckets
        buckets += 1
        if buckets == 2 and rank == 1:
            raise MemoryError("no room")
        settle(task, contents)

    if how == "flipped":
        exchange._decode = flipped
    else:
        exchange._commit = failing


def refused(rank: int, world_size: int) -> dict[str, str]:
    """What does not go with one buffer."""
    unused: dict[str, Any] = {"find_unused_parameters": True}
    found = {}
    memory = gradwire.memory.Residual(low_memory=True)
    for name, made, ddp in (
        ("sum", gradwire.randomk(ratio=0.1, memory=memory), {}),
        ("leader", dataclasses.replace(TOPK, exchange=gradwire.exchange.LeaderIndices()), {}),
        ("quantizer", dataclasses.replace(TOPK, quantize=Halves()), {}),
        ("skipping", TOPK, {**unused, "skip_all_reduce_unused_params": True}),
    ):
        try:
            with attached(network(), made, **ddp):
                found[name] = "fine"
        except ValueError as error:
            found[name] = str(error)
    return found


def overflowing(rank: int, world_size: int) -> dict[str, Any]:
    """Finite float16 gradients whose average with the residual is too large, in the last bucket."""
    scaler = torch.amp.GradScaler("cpu", init_scale=1.0)
    module = Given({"a": torch.float16})
    found: dict[str, Any] = {"errors": []}
    codec = dataclasses.replace(TOPK, sparsify=gradwire.sparsify.TopK(k=1))
    options = {"grad_scaler": scaler}
    with attached(module, codec, options=options, bucket_cap_mb=SMALL_BUCKETS) as (model, handle):
        for step in range(3):
            gradients = integers(7, rank, step)
            gradients["a"] = torch.zeros(64, 40)
            gradients["a"][0, :2] = torch.tensor([60000.0, 49984.0])  # the second has to wait
            before = _states(handle)
            if step == 1:
                gradients["a"][0, 0] = 0.0
            if step == 2:
                gradients["a"].zero_()[5, 5] = 1.0
            model.zero_grad()
            scaler.scale(model(gradients)).backward()
            found["errors"].append(str(handle.error))
            found[f"changed {step}"] = _states(handle) != before
            grads: list[Any] = [each.grad for each in model.parameters()]
            found[f"bad {step}"] = not any(bool(each.isfinite().any()) for each in grads)
        found["sent late"] = float(grads[0][0, 1])
    return found


def bytes_of(rank: int, world_size: int) -> list[float]:
    """Bytes of state for each compressed entry, by the report."""
    found = []
    for memory in (
        gradwire.memory.Residual(low_memory=True),
        gradwire.memory.Residual(low_memory=True, dtype="bfloat16"),
    ):
        with attached(network(), gradwire.topk(ratio=0.05, memory=memory)) as (_, handle):
            report = handle.report()
            compressed = sum(each.numel for each in report.parameters if not each.dense)
            found.append(report.state_bytes / compressed)
    return found
