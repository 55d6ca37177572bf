"""Checkpoints of an earlier release load: the files in ``tests/golden/checkpoints``."""

import contextlib
import dataclasses
import json
from pathlib import Path

import pytest
import torch
from torch import nn

import gradwire
import gradwire.torch
from gradwire.exchange import AllGather
from gradwire.memory import Residual
from gradwire.quantize import BFloat16
from tests.distributed.ranks import on
from tests.distributed.scenarios.common import attached, plain

FOLDER = Path(__file__).parents[1] / "golden" / "checkpoints"
CODECS = {
    "topk": gradwire.topk(0.1),
    "topk_bfloat16": gradwire.topk(0.1, memory=Residual(low_memory=True)),
    "dgc": gradwire.dgc(0.1),
    "adam": gradwire.adam(0.1, quantize=BFloat16()),
    "nodes": gradwire.topk(0.1),
}
"""Of two ranks, but for "nodes": of four, as two nodes of two."""
ON_TWO = [case for case in CODECS if case != "nodes"]


@contextlib.contextmanager
def trained(case, hierarchy, rank, *, gathers=True):
    """An attached model, and what trains it.

    The files are of codecs with an all-gather, which was the default; or take what is the default.
    """
    codec = CODECS[case]
    if gathers and codec.exchange.gathers_frames:
        codec = dataclasses.replace(codec, exchange=AllGather())
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(10, 12), nn.Tanh(), nn.Linear(12, 6))
    optimizer = torch.optim.AdamW(model.parameters()) if case == "adam" else None
    options = {"min_numel": 16, "hierarchy": hierarchy, "optimizer": optimizer}
    with attached(model, codec, options=options) as (parallel, handle):

        def train(steps):
            for step in steps:
                random = torch.Generator().manual_seed(100 * step + rank)
                parallel.zero_grad()
                parallel(torch.randn(8, 10, generator=random)).square().sum().backward()
                if optimizer is not None:
                    optimizer.step()

        yield handle, train


def without_optimizer(saved):
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


def loaded(rank, case, hierarchy=None, gathers=True):
    """Load the file, save at once, and train on; return what was there and what this rank got."""
    saved = torch.load(FOLDER / f"{case}.pt", weights_only=True)
    with trained(case, hierarchy, rank, gathers=gathers) as (handle, train):
        handle.load_state_dict(saved)
        again = handle.gathered_state_dict(None)
        assert handle.step == 3
        train(range(3, 5))
        assert handle.step == 5
    if gathers:
        assert without_optimizer(again) == without_optimizer(saved)
    mine = again[f"rank{rank}"]
    for parameter in json.loads(mine["about"])["parameters"].values():
        assert parameter["state"]["scalars"].get("second_moment_steps", 3.0) == 3.0
    kinds = {kind: one for kind, one in mine.items() if kind != "about"}
    assert any(each.any() for one in kinds.values() for each in one.values())
    return saved, kinds


@pytest.mark.parametrize("case", ON_TWO)
@on("two")
def test_they_load_and_are_saved_again_as_they_were(rank, case):
    loaded(rank, case)


@on("four")
def test_those_of_nodes_load_and_are_saved_again_as_they_were(rank):
    loaded(rank, "nodes", hierarchy=2)


@pytest.mark.parametrize("case", ON_TWO)
@on("three")
def test_they_load_on_another_number_of_ranks(rank, case):
    saved, kinds = loaded(rank, case, gathers=False)
    for kind, one in kinds.items():
        parts = 3 if kind == "residual" else 2  # moments are averaged over those that had them
        for name, values in one.items():
            total = sum(saved[f"rank{old}"][kind][name].double() for old in range(2))
            assert torch.equal(values, (total / parts).float().to(values.dtype))
            assert (values.dtype == torch.bfloat16) == (case == "topk_bfloat16")


@on("two")
def test_those_of_nodes_load_without_nodes(rank):
    """Residuals of a node are of its mean gradient: they count once for each of its ranks."""
    saved, kinds = loaded(rank, "nodes", gathers=False)
    for name, values in kinds["residual"].items():
        shares = [saved[f"rank{old}"]["residual"][name] for old in range(4)]
        nodes = [2 * torch.cat(shares[at : at + 2]).float() for at in (0, 2)]
        expected = (nodes[0].double() + nodes[1].double()) / 2
        assert torch.equal(values.flatten(), expected.float().flatten())
