"""Checkpoints of an earlier release: made once, by `make`, and loaded by every later one."""

import contextlib
import dataclasses
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from torch import nn

import gradwire
import gradwire.torch
from gradwire import Codec
from gradwire.exchange import AllGather
from gradwire.quantize import BFloat16
from gradwire.torch.ddp import Handle
from tests.distributed.scenarios.common import attached, plain

FOLDER = Path(__file__).parents[2] / "golden" / "checkpoints"

CODECS: dict[str, Codec] = {
    "topk": gradwire.topk(0.1),
    "topk_bfloat16": gradwire.topk(0.1, memory=gradwire.memory.Residual(low_memory=True)),
    "dgc": gradwire.dgc(0.1),
    "adam": gradwire.adam(0.1, quantize=BFloat16()),
    "nodes": gradwire.topk(0.1),
}
"""Of two ranks, but for "nodes": of four, as two nodes of two."""


def network() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(10, 12), nn.Tanh(), nn.Linear(12, 6))


@contextlib.contextmanager
def trained(
    case: str, hierarchy: int | None, rank: int, *, gathers: bool = True
) -> Iterator[tuple[Handle, Callable[[range], None]]]:
    """An attached model, and what trains it.

    The files are of codecs with an all-gather, which was the default; or take what is the default.
    """
    codec = CODECS[case]
    if gathers and codec.exchange.gathers_frames:
        codec = dataclasses.replace(codec, exchange=AllGather())
    model = network()
    optimizer = torch.optim.AdamW(model.parameters()) if case == "adam" else None
    options = {"min_numel": 16, "hierarchy": hierarchy, "optimizer": optimizer}
    with attached(model, codec, options=options) as (parallel, handle):

        def train(steps: range) -> None:
            for step in steps:
                random = torch.Generator().manual_seed(100 * step + rank)
                parallel.zero_grad()
                parallel(torch.randn(8, 10, generator=random)).square().sum().backward()
                if optimizer is not None:
                    optimizer.step()

        yield handle, train


def make(rank: int, world_size: int, case: str) -> None:
    """Save three steps, in the folder of the golden files."""
    with trained(case, 2 if case == "nodes" else None, rank) as (handle, train):
        train(range(3))
        saved = handle.gathered_state_dict(0)
        if rank == 0:
            torch.save(saved, FOLDER / f"{case}.pt")


def without_optimizer(saved: dict[str, Any]) -> list[Any]:
    """The bits of a checkpoint, but for the optimizer's step, which its own checkpoint restores.

    The spread of gradients over the ranks is what the ratio of squares was before.
    """
    made = {}
    for rank, one in saved.items():
        about = json.loads(one["about"])
        about.pop("optimizer_step", None)
        for parameter in about["parameters"].values():
            parameter.pop("spread", None)
        made[rank] = {**one, "about": json.dumps(about)}
    return plain(made)


def load(
    rank: int, world_size: int, case: str, hierarchy: int | None = None, gathers: bool = True
) -> dict[str, Any]:
    """Load the file, save at once, and train on."""
    saved = torch.load(FOLDER / f"{case}.pt", weights_only=True)
    with trained(case, hierarchy, rank, gathers=gathers) as (handle, train):
        handle.load_state_dict(saved)
        again = handle.gathered_state_dict(None)
        step = handle.step
        train(range(3, 5))
        return {
            "same": without_optimizer(again) == without_optimizer(saved),
            "kinds": {
                kind: {name: values.float().numpy() for name, values in one.items()}
                for kind, one in again[f"rank{rank}"].items()
                if kind != "about"
            },
            "steps": (step, handle.step),
        }
