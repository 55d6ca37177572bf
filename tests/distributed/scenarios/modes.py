"""DDP's modes: accumulation, unused parameters, uneven inputs, other dtypes, compilation."""

import gc
import threading
import weakref
from typing import Any

import numpy as np
import torch
from torch.nn.parallel import DistributedDataParallel

import gradwire
import gradwire.torch.ddp
from tests.distributed.scenarios.common import (
    SHAPES,
    SMALL_BUCKETS,
    Given,
    attached,
    batch,
    fingerprint,
    gradients_of,
    integers,
    network,
    residuals,
    train,
)
from tests.distributed.scenarios.parity import preset

TOPK: tuple[str, dict[str, Any]] = ("topk", {"ratio": 0.05})
EVERYTHING: tuple[str, dict[str, Any]] = ("topk", {"ratio": 1.0})


def accumulation(rank: int, world_size: int) -> dict[str, Any]:
    """Three backward passes, the first two without synchronisation."""
    given = {name: np.zeros(int(np.prod(shape))) for name, shape in SHAPES.items()}
    with attached(Given(), gradwire.topk(ratio=0.05), bucket_cap_mb=SMALL_BUCKETS) as (
        model,
        handle,
    ):
        model.zero_grad()
        for step in range(3):
            gradients = integers(2, rank, step)
            for name, each in gradients.items():
                given[name] += each.numpy().ravel()
            if step < 2:
                with model.no_sync():
                    model(gradients).backward()
                silent = handle.report().collectives
            else:
                model(gradients).backward()
        applied = {name: each * world_size for name, each in gradients_of(model.module).items()}
        return {
            "given": given,
            "applied": applied,
            "left": residuals(handle),
            "while_accumulating": silent,
        }


def unused(rank: int, world_size: int, ddp: dict[str, Any]) -> dict[str, Any]:
    """Use `a` everywhere, then nowhere, then on the last rank only, then everywhere."""
    given = np.zeros(int(np.prod(SHAPES["a"])))
    applied = np.zeros_like(given)
    left, grad_was_none = [], []
    with attached(Given(), gradwire.topk(ratio=0.05), find_unused_parameters=True, **ddp) as (
        model,
        handle,
    ):
        for step in range(5):
            names = set(SHAPES)
            if step in (1, 2) or (step == 3 and rank != world_size - 1):
                names -= {"a"}
            gradients = integers(3, rank, step, sorted(names))
            model.zero_grad()
            model(gradients).backward()
            if "a" in gradients:
                given += gradients["a"].numpy().ravel()
            grad = model.module.a.grad
            grad_was_none.append(grad is None)
            if grad is not None:
                applied += grad.double().numpy().ravel() * world_size
            left.append(residuals(handle)["a"])
    return {"given": given, "applied": applied, "left": left, "grad_was_none": grad_was_none}


def uneven_inputs(
    rank: int, world_size: int, codec: tuple[str, dict[str, Any]] = TOPK
) -> dict[str, Any]:
    """Under join(), rank r has 3 + 2 r batches; finished ranks still have residuals to send."""
    given = {name: np.zeros(int(np.prod(shape))) for name, shape in SHAPES.items()}
    applied = {name: np.zeros_like(zero) for name, zero in given.items()}
    left = []
    name, options = codec
    with attached(Given(), preset(name, **options), bucket_cap_mb=SMALL_BUCKETS) as (
        model,
        handle,
    ):
        optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
        with model.join():
            for step in range(3 + 2 * rank):
                gradients = integers(4, rank, step)
                optimizer.zero_grad()
                model(gradients).backward()
                optimizer.step()
                for name, each in gradients.items():
                    given[name] += each.numpy().ravel()
                left.append(float(np.abs(residuals(handle)["a"]).sum()))
        after = residuals(handle)
        # join() copies the last rank's parameters to all: there, all updates were applied.
        for name, parameter in model.module.named_parameters():
            applied[name] = -parameter.detach().double().numpy().ravel() * world_size
        return {
            "given": given,
            "applied": applied,
            "left": after,
            "flowed": float(np.abs(after["a"]).sum()) < left[-1] if rank == 0 else None,
            "fingerprint": fingerprint(model),
        }


def dtypes(
    rank: int, world_size: int, codec: tuple[str, dict[str, Any]] = EVERYTHING
) -> dict[str, Any]:
    """Parameters of four dtypes; everything is sent, so that plain DDP says what must come out."""
    mixed = {"a": torch.float16, "b": torch.bfloat16, "c": torch.float64, "bias": torch.bfloat16}
    ours: list[dict[str, np.ndarray]] = []
    plain: list[dict[str, np.ndarray]] = []
    name, options = codec
    with attached(Given(mixed), preset(name, **options), bucket_cap_mb=SMALL_BUCKETS) as (
        model,
        _,
    ):
        reference = DistributedDataParallel(Given(mixed), bucket_cap_mb=SMALL_BUCKETS)
        for step in range(4):
            for each, results in ((model, ours), (reference, plain)):
                each.zero_grad()
                each(integers(5, rank, step)).backward()
                results.append(gradients_of(each.module))
    return {"ours": ours, "plain": plain}


def compiled(rank: int, world_size: int) -> tuple[float, int]:
    """torch.compile around a DDP model: return the largest difference to the eager one."""
    with attached(network(), gradwire.topk(ratio=0.05)) as (eager, _):
        train(eager, rank, range(4))
    model = DistributedDataParallel(network())
    fast: Any = torch.compile(model, backend="eager")
    handle = gradwire.torch.ddp.attach(fast, gradwire.topk(ratio=0.05))
    train(fast, rank, range(4))
    collectives = handle.report().collectives
    handle.detach()
    pairs = zip(eager.parameters(), model.parameters(), strict=True)
    return max(float((one - other).detach().abs().max()) for one, other in pairs), collectives


def switching(rank: int, world_size: int) -> dict[str, Any]:
    """Detach and attach again, with another codec."""
    model = DistributedDataParallel(network())
    train(model, rank, range(2))
    plain = DistributedDataParallel(network())
    train(plain, rank, range(4))
    first = gradwire.torch.ddp.attach(model, gradwire.topk(ratio=1.0))
    first.detach()
    first.detach()
    train(model, rank, range(2, 4))
    collectives = first.report().collectives
    try:
        first.load_state_dict(first.state_dict())
        detached = ""
    except ValueError as error:
        detached = str(error)
    same = fingerprint(plain) == fingerprint(model)
    second = gradwire.torch.ddp.attach(model, gradwire.topk(ratio=0.05))
    try:
        gradwire.torch.ddp.attach(model, gradwire.topk(ratio=0.05))
        refused = ""
    except ValueError as error:
        refused = str(error)
    train(model, rank, range(4, 6))
    compression = second.report().compression
    second.detach()
    return {
        "plain_again": same,
        "collectives_detached": collectives,
        "refused": refused,
        "detached": detached,
        "compression": compression,
    }


def two_models(rank: int, world_size: int) -> tuple[str, str]:
    """Two models in one backward pass, as adversarial training has it, each with its codec."""
    with (
        attached(network(1), gradwire.topk(ratio=0.05), bucket_cap_mb=SMALL_BUCKETS) as (one, _),
        attached(network(2), gradwire.sidco(ratio=0.05), bucket_cap_mb=SMALL_BUCKETS) as (two, _),
    ):
        optimizer = torch.optim.SGD([*one.parameters(), *two.parameters()], lr=0.05)
        for step in range(5):
            inputs, targets = batch(rank, step)
            optimizer.zero_grad()
            difference = one(inputs) * two(inputs) - targets
            difference.square().mean().backward()
            optimizer.step()
        return fingerprint(one), fingerprint(two)


def letting_go(rank: int, world_size: int) -> dict[str, Any]:
    """Forget a model without detaching: its threads must end, and its memory be free."""
    others = threading.enumerate()  # an earlier model's may still be ending
    model = DistributedDataParallel(network())
    handle = gradwire.torch.ddp.attach(model, gradwire.topk(ratio=0.05))
    train(model, rank, range(2))
    threads = [
        each
        for each in threading.enumerate()
        if each not in others and each.name.startswith("gradwire")
    ]
    weight = weakref.ref(model.module[0].weight)
    kept = weakref.ref(handle)
    del model, handle
    gc.collect()
    for thread in threads:
        thread.join(30.0)
    return {
        "threads": len(threads),
        "alive": sum(thread.is_alive() for thread in threads),
        "handle": kept() is not None,
        "weight": weight() is not None,
    }


def subgroup(rank: int, world_size: int) -> tuple[str, int] | None:
    """A model over some of the ranks only; the others know nothing of it."""
    group = torch.distributed.new_group([0, 1])
    if rank > 1:
        # torch counts the groups that a process makes, and names later ones by that count.
        for _ in range(2):
            torch.distributed.new_group([rank], use_local_synchronization=True)
        return None
    with attached(network(), gradwire.topk(ratio=0.05), process_group=group) as (model, handle):
        train(model, rank, range(3))
        return fingerprint(model), handle.world_size
