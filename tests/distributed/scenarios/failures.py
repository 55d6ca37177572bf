"""Ranks that raise, die, or do something else than the others."""

import os
import pickle
import time
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any, cast
from unittest import mock

import torch
import torch.distributed as dist
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook
from torch.nn.parallel import DistributedDataParallel

import gradwire
import gradwire.torch.ddp
from gradwire.torch.ddp import ExchangeError
from gradwire.torch.engine.step import InFlightBucket, Step
from gradwire.torch.exchange.checksums import AverageChecksums
from gradwire.torch.transport import Store
from tests.deadlines import stretched
from tests.distributed.scenarios.common import (
    SMALL_BUCKETS,
    Given,
    attached,
    fingerprint,
    integers,
    network,
    residuals,
    train,
)
from tests.distributed.scenarios.exchanges import exchanged


class Trouble(torch.autograd.Function):
    """Does something bad in the middle of the backward pass."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, trouble: Callable[[], None]) -> torch.Tensor:
        ctx.trouble = trouble
        return x.clone()

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, None]:
        ctx.trouble()
        return gradient, None


class Troubled(torch.nn.Module):
    """A network that can be told to fail in its backward pass, between its buckets."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = torch.nn.ModuleList(network())
        self.trouble: Callable[[], None] = lambda: None

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for index, layer in enumerate(self.layers):
            x = layer(x)
            if index == 2:
                x = Trouble.apply(x, self.trouble)
        return x


def die() -> None:
    os._exit(7)


def stay() -> None:
    """Until the other rank has its error: it is to see silence, and not a closed connection."""
    try:
        told().wait(["seen"], 20 * patience())
    finally:
        die()


def patience() -> timedelta:
    """After which collectives give up: set when the ranks began, on a machine as busy as then."""
    group: Any = dist.group.WORLD
    given: timedelta = group._get_backend(torch.device("cpu")).options._timeout
    return given


def told() -> Store:
    """What ranks tell each other without a collective."""
    store: Store = dist.distributed_c10d._get_default_store()
    return store


def fail() -> None:
    raise ArithmeticError("trouble in the backward pass")


def one_rank_is_absent(rank: int, world_size: int, attaches: bool) -> dict[str, Any]:
    """Rank 1 ends between two steps, or never comes to attach; say what the other one sees."""
    model = DistributedDataParallel(network(), bucket_cap_mb=SMALL_BUCKETS)
    if rank == 1 and not attaches:
        stay()
    try:
        gradwire.torch.ddp.attach(model, gradwire.topk(ratio=0.05))
        train(model, rank, range(2))
        if rank == 1:
            die()
        train(model, rank, range(2, 4))
    except ExchangeError as error:
        told().set("seen", "")
        again = pickle.loads(pickle.dumps(error))
        return {"error": str(error), "rank": error.rank, "unpickled": again.rank}
    raise AssertionError("rank 1 was not missed")


def one_rank_fails(
    rank: int, world_size: int, how: str, exchange: str | None = None
) -> dict[str, Any]:
    """After two good steps rank 1 fails; say what the other one sees, and when."""
    module = Troubled()
    model = DistributedDataParallel(module, bucket_cap_mb=SMALL_BUCKETS)
    codec = gradwire.topk(ratio=0.05) if exchange is None else exchanged(exchange)
    handle = gradwire.torch.ddp.attach(model, codec)
    train(model, rank, range(2))
    if rank == 1:
        if how == "before the hook":
            stay()
        module.trouble = {"raises": fail, "dies": die}.get(how, module.trouble)
    start = time.monotonic()
    error = later = ""
    try:
        train(model, rank, range(2, 3))
    except (ExchangeError, ArithmeticError) as caught:
        error = f"{type(caught).__name__}: {caught}"
    patiences = timedelta(seconds=time.monotonic() - start) / patience()
    if rank == 1:
        stay()
    try:
        train(model, rank, range(3, 4))
    except ExchangeError as caught:
        later = str(caught)
    told().set("seen", "")
    return {
        "patiences": patiences,
        "error": error,
        "kept": type(handle.error).__name__,
        "rank": getattr(handle.error, "rank", None),
        "later": later,
        "repr": repr(handle),
    }


def emergency(rank: int, world_size: int, how: str, folder: str) -> str:
    """Rank 1 fails in its third step, the other one therefore as well; both save what they have."""
    module = Troubled()
    model = DistributedDataParallel(module, bucket_cap_mb=SMALL_BUCKETS)
    handle = gradwire.torch.ddp.attach(model, gradwire.topk(ratio=0.05))
    train(model, rank, range(2))
    error = ""
    try:
        if rank == 1:
            if how == "before the hook":
                raise ArithmeticError("trouble in the input pipeline")
            module.trouble = fail
        train(model, rank, range(2, 3))
    except (ExchangeError, ArithmeticError) as caught:
        error = type(caught).__name__
    saved = {"model": module.state_dict(), "gradwire": handle.state_dict()}
    torch.save(saved, Path(folder) / f"rank{rank}.pt")
    if rank == 0:
        told().set("saved", "")
    else:  # its process is there until the other one's patience is at an end
        told().wait(["saved"], 20 * patience())
    return error


def after_emergency(rank: int, world_size: int, folder: str) -> tuple[int, int, str]:
    """Go on from what `emergency` saved."""
    saved = torch.load(Path(folder) / f"rank{rank}.pt", weights_only=True)
    module = Troubled()
    module.load_state_dict(saved["model"])
    with attached(module, gradwire.topk(ratio=0.05), bucket_cap_mb=SMALL_BUCKETS) as (
        model,
        handle,
    ):
        handle.load_state_dict(saved["gradwire"])
        step = handle.step
        train(model, rank, range(2, 5))
        return step, handle.step, fingerprint(module)


def encoding_fails(rank: int, world_size: int) -> dict[str, str]:
    """Something unforeseen in the worker of rank 1: here, its state is in use elsewhere."""
    model = DistributedDataParallel(network(), bucket_cap_mb=SMALL_BUCKETS)
    handle = gradwire.torch.ddp.attach(model, gradwire.topk(ratio=0.05))
    train(model, rank, range(2))
    if rank == 1:
        handle._parameters["3.weight"].state = cast(Any, None)
    found = {}
    for when in ("first", "later"):
        try:
            train(model, rank, range(2, 3))
        except ExchangeError as caught:
            found[when] = str(caught)
    found["kept"] = type(handle.error).__name__
    handle.detach()  # broken: must not wait for anyone
    train(model, rank, range(3, 5))
    found["plain"] = "works"
    return found


def averages_differ(rank: int, world_size: int, name: str) -> dict[str, Any]:
    """One bit of one average is another on rank 1, in the third step."""
    model = DistributedDataParallel(network(), bucket_cap_mb=SMALL_BUCKETS)
    narrow = gradwire.topk(ratio=0.05, memory=gradwire.memory.Residual(low_memory=True))
    codec = narrow if name == "bfloat16" else exchanged(name)
    handle = gradwire.torch.ddp.attach(model, codec)
    train(model, rank, range(2))
    note = AverageChecksums.note

    def changed(checksums: AverageChecksums, flight: InFlightBucket) -> None:
        if "3.weight" in flight.task.layout.names:
            flight.task.bucket.values.view(torch.uint8)[5] ^= 1
        note(checksums, flight)

    with mock.patch.object(AverageChecksums, "note", changed if rank == 1 else note):
        train(model, rank, range(2, 3))
    try:
        train(model, rank, range(3, 5))
    except ExchangeError as error:
        return {"text": str(error), "rank": error.rank, "steps": handle.report().steps}
    finally:
        handle.detach()
    return {"text": ""}


def undoing_fails(rank: int, world_size: int) -> dict[str, Any]:
    """Something unforeseen where a step is undone, while a future waits for the outcome."""
    model = DistributedDataParallel(Given())
    handle = gradwire.torch.ddp.attach(model, gradwire.topk(ratio=0.05))
    gradients = integers(1, rank, 0)
    gradients["a"][0, 0] = torch.nan
    with mock.patch.object(Step, "undo_all", side_effect=ArithmeticError("cannot undo")):
        try:
            model(gradients).backward()
        except ExchangeError as error:
            return {"text": str(error), "kept": type(handle.error).__name__}
    return {"text": ""}


def backward_fails_everywhere(rank: int, world_size: int) -> dict[str, Any]:
    """All ranks raise half-way through a backward pass, catch it, wrap anew, and train on.

    DDP itself refuses to go on with a model whose backward pass did not end.
    """
    module = Troubled()
    codec = gradwire.topk(ratio=0.05)
    with attached(module, codec, bucket_cap_mb=SMALL_BUCKETS) as (model, handle):
        train(model, rank, range(3))
        before = residuals(handle)
        collectives = handle.report().collectives
        module.trouble = fail
        try:
            train(model, rank, range(3, 4))
            raised = False
        except ArithmeticError:
            raised = True
        half_way = handle.report().collectives > collectives
        saved = handle.state_dict()
        error = repr(handle.error)
    module.trouble = lambda: None
    with attached(module, codec, bucket_cap_mb=SMALL_BUCKETS) as (model, handle):
        handle.load_state_dict(saved)
        after = residuals(handle)
        train(model, rank, range(4, 6))
        return {
            "raised": raised,
            "half_way": half_way,
            "rolled_back": all(before[name].tobytes() == after[name].tobytes() for name in before),
            "steps": handle.step,
            "error": error,
        }


def disagreement(rank: int, world_size: int) -> list[str]:
    """Attach with options that differ between ranks."""
    texts = []
    for codec, options in (
        (gradwire.topk(ratio=0.05 if rank == 0 else 0.1), {}),
        (gradwire.topk(ratio=0.05), {"min_numel": 1024 if rank == 0 else 5000}),
        (
            gradwire.topk(ratio=0.05),
            {"grad_scaler": torch.amp.GradScaler("cpu", enabled=rank == 0)},
        ),
    ):
        model = DistributedDataParallel(network())
        try:
            gradwire.torch.ddp.attach(model, codec, **options)
            texts.append("")
        except ValueError as error:
            texts.append(str(error))
    return texts


def out_of_step(rank: int, world_size: int) -> str:
    """Rank 1 leaves out a step that rank 0 makes; both then meet in the same collective."""
    model = DistributedDataParallel(Given())
    handle = gradwire.torch.ddp.attach(
        model, gradwire.dense(), timeout=timedelta(seconds=stretched(3))
    )  # dense: all slots have one size
    model(integers(1, rank, 0)).backward()
    handle._pipeline.drain()
    if rank == 1:
        handle._pipeline._sequence += 1  # as if it had made one more
    try:
        model(integers(1, rank, 1)).backward()
    except ExchangeError as error:
        return str(error)
    return ""


def refusals(rank: int, world_size: int) -> dict[str, str]:
    """What attach refuses before it does anything."""
    codec = gradwire.topk(ratio=0.05)
    hooked = DistributedDataParallel(network())
    hooked.register_comm_hook(
        dist.group.WORLD,
        allreduce_hook,
    )
    skipping = DistributedDataParallel(
        network(), find_unused_parameters=True, skip_all_reduce_unused_params=True
    )
    found = {}
    for name, call in {
        "not DDP": lambda: gradwire.torch.ddp.attach(network(), codec),
        "other hook": lambda: gradwire.torch.ddp.attach(hooked, codec),
        "skipping": lambda: gradwire.torch.ddp.attach(skipping, codec),
    }.items():
        try:
            call()
        except (TypeError, ValueError) as error:
            found[name] = f"{type(error).__name__}: {error}"
    return found
