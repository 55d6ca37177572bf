"""Models of other kinds: complex, with sparse gradients, frozen in part."""

from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import gradwire
import gradwire.torch.ddp
from gradwire.exchange import Exchange
from gradwire.torch.ddp import GradientError
from tests.distributed.scenarios.common import (
    SMALL_BUCKETS,
    fingerprint,
    network,
    residuals,
)


class Complex(nn.Module):
    """Complex parameters of two precisions beside a real one."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.short = nn.Parameter(torch.randn(40, 30, dtype=torch.complex64))
        self.long_ = nn.Parameter(torch.randn(20, dtype=torch.complex128))
        self.real = nn.Parameter(torch.randn(50, 40))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y: torch.Tensor = (x @ self.real).to(torch.complex64) @ self.short
        return y.abs().square().sum().double() + (self.long_ * x[0, :20]).abs().square().sum()


class Sparse(nn.Module):
    """An embedding with sparse gradients before a layer."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.embedding = nn.Embedding(300, 24, sparse=True)
        self.linear = nn.Linear(24, 60)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y: torch.Tensor = self.linear(self.embedding(x)).square().sum()
        return y


def _input(model: nn.Module, rank: int, step: int) -> torch.Tensor:
    random = torch.Generator().manual_seed(1000 * step + rank)
    if isinstance(model, Sparse):
        return torch.randint(300, (12,), generator=random)
    return torch.randn(8, 50, generator=random)


def _codec(exchange: str) -> Any:
    """Send all entries by the exchange of this kind: without positions, if it takes that."""
    part: Any = Exchange.KINDS[exchange]()
    try:
        return gradwire.dense(memory=gradwire.memory.Residual(), exchange=part)
    except ValueError:
        return gradwire.Codec(sparsify=gradwire.sparsify.TopK(ratio=1.0), exchange=part)


def like_plain(rank: int, world_size: int, model: str, exchange: str) -> tuple[str, str, str]:
    """Train with all entries sent, and with DDP alone; then say where gradients were not finite."""
    kinds: dict[str, type[nn.Module]] = {"complex": Complex, "sparse": Sparse}
    prints = []
    told = ""
    for compressed in (True, False):
        module = kinds[model]()
        ddp = DistributedDataParallel(module, bucket_cap_mb=SMALL_BUCKETS)
        optimizer = torch.optim.SGD(ddp.parameters(), lr=1e-4)
        handle = gradwire.torch.ddp.attach(ddp, _codec(exchange)) if compressed else None
        for step in range(5):
            if handle is not None and step == 3:
                told = _spoil(ddp, module, rank)
            optimizer.zero_grad()
            ddp(_input(module, rank, step)).backward()
            optimizer.step()
        if handle is not None:
            report = handle.report()
            assert report.wire_bytes > 0
            handle.detach()
            told += f", {len(report.parameters)}"
        prints.append(fingerprint(ddp))
    return prints[0], prints[1], told


def _spoil(ddp: nn.Module, module: nn.Module, rank: int) -> str:
    """Run a backward pass with a gradient that is not finite at one place of rank 1."""

    def spoil(gradient: torch.Tensor) -> torch.Tensor:
        if rank == 1 and gradient.is_sparse:
            gradient = gradient.coalesce()
            gradient.values()[1, 5] = torch.nan
        elif rank == 1:
            gradient = gradient.clone()
            torch.view_as_real(gradient)[2, 5, 1] = torch.inf
        return gradient

    sparse = isinstance(module, Sparse)
    parameter = module.embedding.weight if isinstance(module, Sparse) else module.short
    assert isinstance(parameter, torch.Tensor)
    hook = parameter.register_hook(spoil)
    inputs = torch.tensor([7, 11, 13]) if sparse else _input(module, rank, 99)
    try:
        ddp(inputs).backward()
    except GradientError as error:
        return f"{error.name}, {error.rank}, {error.count}, {error.first}"
    finally:
        hook.remove()
    return ""


def sparse_with_scaler(rank: int, world_size: int) -> dict[str, Any]:
    """Two optimizers share a scaler; what is not finite anywhere must stop both."""
    module = Sparse()
    ddp = DistributedDataParallel(module)
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    codec = gradwire.topk(ratio=0.05)
    handle = gradwire.torch.ddp.attach(ddp, codec, grad_scaler=scaler)
    optimizers = [
        torch.optim.SGD(module.embedding.parameters(), lr=1e-3),
        torch.optim.SGD(module.linear.parameters(), lr=1e-3),
    ]
    found: dict[str, Any] = {}
    for name, bad in {"good": "", "dense": "linear", "sparse": "embedding", "later": ""}.items():
        before, left = _hashes(module), residuals(handle)
        for optimizer in optimizers:
            optimizer.zero_grad()
        parameter = getattr(module, bad or "linear").weight
        hook = parameter.register_hook(
            lambda gradient, bad=bad: gradient * (torch.inf if bad and rank == 1 else 1.0)
        )
        scaler.scale(ddp(_input(module, rank, len(found)))).backward()
        hook.remove()
        for optimizer in optimizers:
            scaler.step(optimizer)
        scaler.update()
        after = _hashes(module)
        found[name] = (
            [before[key] != after[key] for key in ("embedding", "linear")],
            all(left[key].tobytes() == each.tobytes() for key, each in residuals(handle).items()),
        )
    handle.detach()
    return {**found, "print": fingerprint(ddp)}


def _hashes(module: Sparse) -> dict[str, str]:
    return {"embedding": fingerprint(module.embedding), "linear": fingerprint(module.linear)}


def unfreezing(rank: int, world_size: int, ddp: dict[str, Any]) -> dict[str, Any]:
    """Freeze layers after wrapping and before `attach`, thaw one after it; and DDP alone."""
    prints = []
    kept: list[set[str]] = []
    for compressed in (True, False):
        module = network()
        model: nn.Module = DistributedDataParallel(module, **ddp)
        module[0].requires_grad_(False)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
        handle = gradwire.torch.ddp.attach(model, _codec("all_gather")) if compressed else None
        for step in range(6):
            if step == 3 and not ddp.get("static_graph"):
                module[0].requires_grad_(True)
            optimizer.zero_grad()
            inputs = torch.randn(8, 32, generator=torch.Generator().manual_seed(10 * step + rank))
            model(inputs).square().sum().backward()
            optimizer.step()
        if handle is not None:
            kept.append(set(residuals(handle)))
            handle.detach()
        prints.append(fingerprint(model))
    return {"same": prints[0] == prints[1], "print": prints[0], "kept": kept[0]}


def frozen_before(rank: int, world_size: int) -> set[str]:
    """What is kept for a model that was frozen in part when it was wrapped: as for adapters."""
    module = network()
    module[0].requires_grad_(False)
    model = DistributedDataParallel(module)
    module[3].requires_grad_(False)
    with_handle = gradwire.torch.ddp.attach(model, gradwire.topk(ratio=0.1))
    kept = set(residuals(with_handle))
    with_handle.detach()
    return kept


def replaced(rank: int, world_size: int) -> np.ndarray:
    """A weight that another one has replaced, in a bucket that DDP still fills."""
    module: Any = network()
    model = DistributedDataParallel(module, find_unused_parameters=True)
    module[5].weight = nn.Parameter(module[5].weight.detach().clone())
    handle = gradwire.torch.ddp.attach(model, gradwire.topk(ratio=0.1))
    for step in range(3):
        model(torch.randn(8, 32, generator=torch.Generator().manual_seed(step))).sum().backward()
    handle.detach()
    gradient = module[0].weight.grad
    assert gradient is not None
    return np.asarray(gradient)
