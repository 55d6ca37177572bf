"""Errors that a program catches, and what DDP does after them."""

import time
import traceback
from typing import Any, cast

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.checkpoint import checkpoint

import gradwire
import gradwire.torch.ddp
from gradwire.torch.ddp import ExchangeError, GradientError, Handle
from tests.distributed.scenarios.common import (
    SMALL_BUCKETS,
    attached,
    batch,
    fingerprint,
    network,
)
from tests.distributed.scenarios.exchanges import exchanged


class Branched(nn.Module):
    """A network with a branch that the caller may leave out, and one that recomputes itself."""

    def __init__(self, *, recompute: bool = False) -> None:
        super().__init__()
        self.trunk = network()
        self.branch = nn.Linear(16, 128)
        self.recompute = recompute

    def forward(self, x: torch.Tensor, branch: bool = True) -> torch.Tensor:
        if self.recompute:
            x.requires_grad_()
            x = checkpoint(self.trunk, x, use_reentrant=True)
        else:
            x = self.trunk(x)
        return x.mean() + (self.branch(x).square().mean() if branch else 0.0)


def caught_again_and_again(
    rank: int,
    world_size: int,
    ddp: dict[str, Any],
    recompute: bool = False,
    compiled: bool = False,
    exchange: str = "senders",
    slow: bool = False,
) -> dict[str, Any]:
    """Every third step is bad on one rank; a branch is used on one rank only, where DDP allows."""
    unused = ddp.get("find_unused_parameters", False)
    prints, errors = [], []
    model = DistributedDataParallel(
        Branched(recompute=recompute), bucket_cap_mb=25 if compiled else SMALL_BUCKETS, **ddp
    )
    called: Any = torch.compile(model, backend="eager") if compiled else model
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    with gradwire.torch.ddp.attach(called, exchanged(exchange)) as handle:
        if slow and rank == 0:
            _slow_down(handle)
        for step in range(12):
            optimizer.zero_grad()
            bad = step % 3 == 1 and rank == (step // 3) % world_size
            try:
                if not ddp.get("static_graph"):  # DDP does not allow both
                    with model.no_sync():
                        called(batch(rank, 100 + step)[0], branch=True).backward()
                inputs = batch(rank, step)[0]
                branch = not unused or step % world_size == rank
                loss = called(inputs, branch=branch)
                (loss * (torch.nan if bad else 1.0)).backward()
            except GradientError as error:
                errors.append((step, error.rank))
                continue
            optimizer.step()
            prints.append(fingerprint(model))
        steps = handle.step
    return {"prints": prints, "errors": errors, "steps": steps}


def _slow_down(handle: Handle) -> None:
    """Let the receiving thread be late with each bucket."""
    exchange: Any = handle._engine.exchange
    combine = exchange._combine

    def late(*given: Any) -> None:
        time.sleep(0.02)
        combine(*given)

    exchange._combine = late


def caught_in_two_models(rank: int, world_size: int) -> dict[str, Any]:
    """Two models in one backward pass, the first of them bad: both must go on as before."""
    with (
        attached(network(1), gradwire.topk(ratio=0.05), bucket_cap_mb=SMALL_BUCKETS) as (one, _),
        attached(network(2), gradwire.topk(ratio=0.05), static_graph=True) as (two, _),
    ):
        optimizer = torch.optim.SGD([*one.parameters(), *two.parameters()], lr=0.05)
        errors = 0
        for step in range(6):
            inputs, targets = batch(rank, step)
            optimizer.zero_grad()
            first = one(inputs)
            if step in (0, 3) and rank == 1:
                first = first * torch.nan
            loss = (first - targets).square().mean() + (two(inputs) - targets).square().mean()
            try:
                loss.backward()
            except GradientError:
                errors += 1
                continue
            optimizer.step()
        return {"errors": errors, "prints": (fingerprint(one), fingerprint(two))}


def caught_under_join(rank: int, world_size: int) -> dict[str, Any]:
    """A bad gradient where another rank is through with its inputs already."""
    errors = []
    with attached(network(), gradwire.topk(ratio=0.05), bucket_cap_mb=SMALL_BUCKETS) as (
        model,
        handle,
    ):
        optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
        with model.join():
            for step in range(2 + 4 * rank):
                inputs, targets = batch(rank, step)
                optimizer.zero_grad()
                bad = step == 3
                try:
                    loss = nn.functional.mse_loss(model(inputs), targets)
                    (loss * (torch.inf if bad else 1.0)).backward()
                except GradientError as error:
                    errors.append((step, error.rank))
                    continue
                optimizer.step()
        return {"errors": errors, "steps": handle.step, "fingerprint": fingerprint(model)}


def broken_and_whole_again(rank: int, world_size: int) -> dict[str, Any]:
    """An exchange fails on one rank; the typed error each time; after detach() the model works."""
    model = DistributedDataParallel(
        Branched(), bucket_cap_mb=SMALL_BUCKETS, find_unused_parameters=True
    )
    handle = gradwire.torch.ddp.attach(model, gradwire.topk(ratio=0.05))
    found: dict[str, Any] = {"errors": [], "infinite": []}
    for step in range(4):
        if step == 1 and rank == 1:
            handle._parameters["trunk.3.weight"].state = cast(Any, None)
        model.zero_grad()
        try:
            model(batch(rank, step)[0], branch=step % 2 == rank).backward()
        except ExchangeError as error:
            found["errors"].append((step, error.rank))
            grad = model.module.trunk[0].weight.grad
            found["infinite"].append(grad is not None and bool(grad.isinf().all()))
    handle.detach()
    for step in range(4, 7):
        model.zero_grad()
        model(batch(rank, step)[0], branch=step % 2 == rank).backward()
    reference = DistributedDataParallel(
        Branched(), bucket_cap_mb=SMALL_BUCKETS, find_unused_parameters=True
    )
    reference(batch(rank, 6)[0], branch=rank == 0).backward()
    found["as_plain"] = all(
        torch.equal(one.grad, other.grad)  # type: ignore[arg-type]
        for one, other in zip(model.parameters(), reference.parameters(), strict=True)
    )
    return found


def traceback_holds_nothing(rank: int, world_size: int) -> bool:
    """Tell whether the error that a handle keeps has the frames, and so the batch, of a caller."""
    with attached(network(), gradwire.topk(ratio=0.05)) as (model, handle):
        try:
            model(torch.full((4, 32), torch.nan)).sum().backward()
        except GradientError:
            assert handle.error is not None
            frames = traceback.walk_tb(handle.error.__traceback__)
            return all(frame.f_code.co_filename != __file__ for frame, _ in frames)
    return False
