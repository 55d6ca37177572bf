"""FSDP2 on four ranks as two nodes of two, whose buckets are averaged as "auto" decides."""

import contextlib
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.distributed.fsdp import fully_shard

import gradwire
import gradwire.torch
import gradwire.torch.fsdp
from gradwire.schedule import Accordion, Constant
from gradwire.torch.fsdp import GradientError, Handle
from tests.distributed.scenarios.auto import (
    BFLOAT16,
    CODEC,
    UNCOMPRESSED,
    mode_of,
    scripted,
)
from tests.distributed.scenarios.common import residuals
from tests.distributed.scenarios.sharded import alike, attached, distance, mesh, sharded, steps

SHAPES = {"a": (33, 40), "b": (50, 30), "c": (40,), "d": (1200, 2)}


class One(nn.Module):
    """A parameter whose gradient is exactly what forward is given."""

    def __init__(self, shape: tuple[int, ...]) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(shape))

    def forward(self, gradient: torch.Tensor) -> torch.Tensor:
        return (self.weight * gradient).sum()


class Given(nn.Module):
    """FSDP modules of one parameter each: so many buckets."""

    def __init__(self) -> None:
        super().__init__()
        self.parts = nn.ModuleDict({name: One(shape) for name, shape in SHAPES.items()})
        for each in self.parts.values():
            fully_shard(each, mesh=mesh()["shard"])
        fully_shard(self, mesh=mesh()["shard"])

    def forward(self, gradients: dict[str, torch.Tensor]) -> torch.Tensor:
        return torch.stack([self.parts[name](each) for name, each in gradients.items()]).sum()


def integers(rank: int, step: int) -> dict[str, torch.Tensor]:
    """Small even integers, of which the means of two and of four ranks are exact."""
    random = np.random.default_rng([71, rank, step])
    return {
        name: torch.from_numpy(np.float32(8 * random.integers(-4, 5, shape)))
        for name, shape in SHAPES.items()
    }


def shards(model: nn.Module) -> dict[str, np.ndarray]:
    """What this rank has of each gradient."""
    return {
        name.split(".")[1]: each.grad.to_local().numpy().ravel().copy()  # type: ignore[union-attr]
        for name, each in model.named_parameters()
    }


def here(rank: int, whole: torch.Tensor) -> np.ndarray:
    """The rows of this rank, as FSDP divides them."""
    parts = torch.chunk(whole, 2)
    return parts[rank % 2].numpy().ravel()


@contextlib.contextmanager
def automatic(model: nn.Module, optimizer: Any, **options: Any) -> Iterator[Handle]:
    """Attach with "auto"."""
    with attached(model, "auto", mesh(), optimizer=optimizer, **options) as handle:
        yield handle


def switching(rank: int, world_size: int, *, spoiled: bool) -> dict[str, Any]:
    """Integers, so that sums are exact: in and out of the codec, whole and in part."""
    node = 2 * (rank // 2)
    given: dict[str, Any] = dict.fromkeys(SHAPES, 0.0)
    applied: dict[str, Any] = dict.fromkeys(SHAPES, 0.0)
    found: dict[str, Any] = {"modes": [], "left": [], "averages": [], "errors": []}
    model = Given()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    with (
        scripted(CODEC, UNCOMPRESSED, BFLOAT16, CODEC, UNCOMPRESSED),
        automatic(model, optimizer, min_ratio=0.05) as handle,
    ):
        for step in range(32 if spoiled else 21):
            gradients = integers(rank, step)
            dropped, before = spoiled and step % 3 == 2, handle.error
            if dropped and step % 2 and rank == 3:
                gradients["a"][30, 4] = torch.nan
            optimizer.zero_grad()
            model(gradients).backward()
            if (error := handle.error) is not before:
                assert isinstance(error, GradientError)
                with contextlib.suppress(GradientError):
                    optimizer.step()
                    raise AssertionError("gradients that are not finite were applied")
                found["errors"].append((step, error.name, error.rank))
            found["modes"].append(mode_of(handle))
            if dropped:  # no step: what was sent must come back
                continue
            optimizer.step()
            averages = shards(model)
            both = [integers(each, step) for each in (node, node + 1)]
            for name in SHAPES:
                mean = (both[0][name] + both[1][name]) / 2
                given[name] += here(rank, mean)
                applied[name] += 2 * averages[name]
            found["averages"].append(averages)
            found["left"].append({key: each.any() for key, each in residuals(handle).items()})
        final = {name.split(".")[1]: each for name, each in residuals(handle).items()}
        return {**found, "given": given, "applied": applied, "final": final, "step": handle.step}


def plainly(rank: int, world_size: int) -> dict[str, Any]:
    """Distances from HSDP of what stays dense, also where passes add up, and within a node."""
    found: dict[str, float] = {}
    for kind in ("plain", "accumulated", "kept"):
        models = sharded(mesh()), sharded(mesh()["shard"])
        for at, model in enumerate(models):
            optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
            with contextlib.ExitStack() as stack:
                if at:
                    stack.enter_context(scripted())
                    handle = stack.enter_context(automatic(model, optimizer))
                for step in range(8):
                    optimizer.zero_grad()
                    for part in range(1 if kind == "plain" else 2):
                        if kind == "kept":
                            model.set_requires_all_reduce(part == 1)
                        inputs = torch.randn(
                            (4, 32), generator=torch.Generator().manual_seed(100 * step + rank)
                        )
                        model(inputs + part).square().mean().backward()
                    optimizer.step()
                if at:
                    found[f"{kind} steps"] = handle.step
        found[kind] = distance(*models)
    return found


def adam(rank: int, world_size: int) -> dict[str, Any]:
    """AdamW through all changes: replicas stay equal, and moments go to where they are needed."""
    model = sharded(mesh()["shard"])
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    found: dict[str, Any] = {"alike": [], "moments": [], "modes": []}
    weight = model[0].weight
    with (
        scripted(CODEC, UNCOMPRESSED, CODEC, BFLOAT16),
        automatic(model, optimizer, min_ratio=0.05) as handle,
    ):
        for step in range(19):
            steps(model, rank, range(step, step + 1), optimizer)
            found["alike"].append(alike(model))
            found["modes"].append(mode_of(handle))
            held = optimizer.state.get(weight)
            moments = held and (float(held["step"]), held["exp_avg_sq"].full_tensor().sum().item())
            found["moments"].append(moments)
        found["residual"] = float(np.abs(residuals(handle)["0.weight"]).max())
        found["finite"] = all(each.isfinite().all() for each in model.parameters())
    return found


def refused(rank: int, world_size: int) -> list[str]:
    """What does not go with it, and at last what does."""
    told = []

    def attempt(codec: Any = "auto", optimizer: bool = True, **options: Any) -> None:
        model = sharded(mesh()["shard"])
        if optimizer:
            options["optimizer"] = torch.optim.SGD(model.parameters(), lr=0.1)
        try:
            attached(model, codec, mesh(), **options).detach()
            told.append("nothing")
        except (TypeError, ValueError) as error:
            told.append(f"{type(error).__name__}: {error}")

    attempt(optimizer=False)
    attempt(min_ratio=100)
    attempt(schedule=Accordion(0.5, 0.05))
    attempt(codec=gradwire.topk(0.1), min_ratio=0.1)
    attempt(schedule=Constant())
    return told
