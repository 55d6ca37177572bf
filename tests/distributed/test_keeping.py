"""Checkpoints survive frameworks, memory formats and damage."""

import copy
import functools
import json
import operator
import random
import re
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn

import gradwire
import gradwire.torch.ddp
from gradwire.memory import MomentumCorrection
from gradwire.schedule import Accordion, WarmUp
from tests.distributed.codecs import SEVERAL
from tests.distributed.ranks import LazyModule, alike, on
from tests.distributed.scenarios.common import (
    Given,
    Run,
    attached,
    fingerprint,
    integers,
    network,
    plain,
    residuals,
    train,
)

dcp = LazyModule("torch.distributed.checkpoint")


@pytest.mark.parametrize(
    "schedule",
    [WarmUp(), Accordion(0.5, 0.05, interval=2)],
    ids=["warm-up", "accordion"],
)
@on("two")
def test_torch_distributed_checkpoint_resumes_bit_for_bit(rank, tmp_path, schedule):
    """Train 4 epochs; or save in each of the first 3, and go on from there."""
    codec, options, states = gradwire.dgc(ratio=0.05), {"schedule": schedule}, []

    def go(model, handle, epochs):
        for epoch in epochs:
            handle.epoch(epoch)
            train(model, rank, range(2 * epoch, 2 * epoch + 2))
        return fingerprint(model), plain(handle.state_dict())

    with attached(network(), codec, options=options, **SEVERAL) as (model, handle):
        assert isinstance(handle, dcp.stateful.Stateful)
        for epoch in range(4):
            whole = go(model, handle, range(epoch, epoch + 1))
            states.append(copy.deepcopy(model.module.state_dict()))
            dcp.save({"gradwire": handle}, checkpoint_id=str(tmp_path / str(epoch)))
    for epoch in range(3):
        module = network(seed=99)
        module.load_state_dict(states[epoch])
        with attached(module, codec, options=options, **SEVERAL) as (model, handle):
            dcp.load({"gradwire": handle}, checkpoint_id=str(tmp_path / str(epoch)))
            assert go(model, handle, range(epoch + 1, 4)) == whole


@on("two")
def test_a_checkpoint_that_is_written_while_training_goes_on_is_of_its_step(rank, tmp_path):
    """Train 6 steps, and write what there was after 3 while the last 3 go on; resume from it."""
    from torch.distributed.checkpoint import state_dict

    group, states = dist.new_group(backend="gloo"), []  # of the thread that writes
    with Run(gradwire.adam(ratio=0.05)) as run:
        run.train(rank, range(3))
        weights = copy.deepcopy(run.module.state_dict())
        moments = copy.deepcopy(state_dict.get_optimizer_state_dict(run.model, run.optimizer))
        options = {"checkpoint_id": tmp_path, "process_group": group}
        written = dcp.async_save({"gradwire": run.handle}, **options)
        run.train(rank, range(3, 6))
        written.result()
        states.append(run.state())
    with Run(gradwire.adam(ratio=0.05), seed=99) as run:
        run.module.load_state_dict(weights)
        # Compressed parameters have nothing there.
        loose = state_dict.StateDictOptions(strict=False)
        state_dict.set_optimizer_state_dict(run.model, run.optimizer, moments, options=loose)
        dcp.load({"gradwire": run.handle}, checkpoint_id=tmp_path)
        run.train(rank, range(3, 6))
        assert run.handle.step == 6
        states.append(run.state())
    dist.destroy_process_group(group)
    assert states[0] == states[1]


@on("ranks")
def test_one_file_holds_all_ranks(rank, size, tmp_path):
    """Written by each of them in turn, and by all."""
    options, codec = {"schedule": Accordion(0.5, 0.05)}, gradwire.dgc(ratio=0.05)
    written = [None, *range(size)]
    with attached(network(), codec, options=options) as (model, handle):
        train(model, rank, range(3))
        own = plain(handle.state_dict())
        for to in written:
            everything = handle.gathered_state_dict(to)
            assert len(everything) == (size if to in (None, rank) else 0)
            if rank == (to or 0):
                torch.save(everything, tmp_path / f"{to}.pt")
        with pytest.raises(ValueError, match=f"at most {size - 1}"):
            handle.gathered_state_dict(size)
    dist.barrier()
    for to in written:
        saved = torch.load(tmp_path / f"{to}.pt", weights_only=True)
        with attached(network(), codec, options=options) as (_, handle):
            handle.load_state_dict(saved)
            assert plain(handle.state_dict()) == own


class Convolutions(nn.Module):
    """Weights of four dimensions, whose gradients the caller gives."""

    def __init__(self, memory_format):
        super().__init__()
        self.conv = nn.Conv2d(16, 24, 3)
        self.to(memory_format=memory_format)

    def forward(self, gradient):
        weight = self.conv.weight
        return (weight * gradient.to(weight.dtype)).sum() + self.conv.bias.sum()


@on("two")
def test_one_state_has_the_residuals_of_all_ranks(rank, size):
    """Of all, or of those that have one, beside what all of them hold."""
    with Run(gradwire.adam(ratio=0.05), min_numel=64) as run:
        run.train(rank, range(5))
        handle = run.handle
        every, whole = handle.gathered_state_dict(None), handle.merged_state_dict()
        alone = handle.merged_state_dict({} if rank else handle.state_dict())
        assert sorted(whole) == ["rank0"]
        for kind, parts in (("residual", 1), ("second_moment", size)):
            for name, values in whole["rank0"][kind].items():
                total = sum(each[kind][name].double() for each in every.values()) / parts
                torch.testing.assert_close(values, total.float(), rtol=1e-6, atol=0.0)
                assert torch.equal(alone["rank0"][kind][name], every["rank0"][kind][name])
        handle.load_state_dict(whole)
        left = handle.gathered_state_dict(None)
        for name, values in whole["rank0"]["residual"].items():
            total = sum(each["residual"][name] for each in left.values())
            torch.testing.assert_close(values, total, rtol=1e-6, atol=1e-8)
        assert handle.merged_state_dict({}) == {}


@on("two")
def test_a_checkpoint_does_not_depend_on_the_memory_format(rank):
    """Save in one memory format and go on in the other."""
    codec = gradwire.topk(ratio=0.05, memory=MomentumCorrection(momentum=0.9))
    formats = (torch.contiguous_format, torch.channels_last)
    gradients = [
        torch.randn(24, 16, 3, 3, generator=torch.Generator().manual_seed(10 * step + rank))
        for step in range(6)
    ]
    saved, ends = [], []

    def go(model, handle, steps):
        for step in steps:
            model.zero_grad()
            model(gradients[step]).backward()
        weight = model.module.conv.weight.grad.contiguous().numpy().tobytes()
        return weight, residuals(handle)["conv.weight"].tobytes()

    for each in formats:
        with attached(Convolutions(each), codec) as (model, handle):
            go(model, handle, range(3))
            saved.append(handle.state_dict())
            ends.append(go(model, handle, range(3, 6)))
    assert ends[0] == ends[1]
    for each, of in zip(formats, reversed(saved), strict=True):
        with attached(Convolutions(each), codec) as (model, handle):
            handle.load_state_dict(of)
            assert go(model, handle, range(3, 6)) == ends[0]


BAD_VALUES: tuple[Any, ...] = (
    *(None, True, -1, 0, 2**53 + 1, 2**63, 2**64, 10**400, 1e300, float("nan"), float("-inf")),
    *("", "x", [], [0], [2**63, 1], [-2, 0], [10**400, 10**400], {}, {"a": 1}, [[[]]]),
)


def bad_tensors():
    return [
        *(torch.full((64, 40), value) for value in (torch.nan, torch.inf)),
        *(torch.zeros(shape) for shape in ((40, 64), 2560, 0, ())),
        *(torch.zeros(64, 40, dtype=dtype) for dtype in (torch.float64, torch.int8)),
        torch.zeros(64, 40).to_sparse(),
        torch.zeros(64, 40, device="meta"),
        *("tensor", None),
    ]


def paths(value, path=()):
    """Every place in nested dicts and lists."""
    items = ()
    if isinstance(value, dict):
        items = value.items()
    elif isinstance(value, list):
        items = enumerate(value)
    return [path] + [inner for key, each in items for inner in paths(each, (*path, key))]


def damaged(saved, chance):
    """A copy of what one rank saved with one thing wrong, and what that is."""
    ((name, mine),) = copy.deepcopy(saved).items()
    root = {name: {**mine, "about": json.loads(mine["about"])}}
    where = chance.choice(["outside", "about", "residual"])
    path = chance.choice(
        [
            path
            for path in paths(root)
            if (len(path) < 3 if where == "outside" else path[1:2] == (where,))
        ]
    )
    value = chance.choice(bad_tensors() if where == "residual" else BAD_VALUES)
    delete, cut = chance.random() < 0.3, chance.random() < 0.05
    what = f"{path} := {value!r:.60} {delete} {cut}"
    if not path:
        return what, value
    *outer, last = path
    place = functools.reduce(operator.getitem, outer, root)
    if delete:
        del place[last]
    else:
        place[last] = value
    mine = root.get(name)
    if isinstance(mine, dict) and (where == "about" or isinstance(mine.get("about"), dict)):
        text = json.dumps(mine.pop("about", None))
        mine["about"] = text[: len(text) // 2] if cut else text
    return what, root


@pytest.mark.parametrize("seed", [1, pytest.param(2, marks=pytest.mark.full)])
@on("two")
def test_damage_on_one_rank_is_refused_on_all_and_changes_nothing(rank, size, seed):
    """Load one damaged checkpoint after another; each is refused by all, or taken by all."""
    chance, outcomes = random.Random(seed), []
    options = {"schedule": Accordion(0.5, 0.05)}
    with attached(Given(), gradwire.dgc(ratio=0.05), options=options) as (model, handle):
        for step in range(2):
            model(integers(9, rank, step)).backward()
        saved = handle.state_dict()
        everything = handle.gathered_state_dict(None)
        model(integers(9, rank, 2)).backward()
        before = plain(handle.state_dict())
        for _ in range(150):
            victim = chance.randrange(size)
            # The same damage is drawn on all ranks, and put in on one.
            name = f"rank{victim}"
            what, bad = damaged({name: everything[name]}, chance)
            try:
                handle.load_state_dict(bad if victim == rank else saved)
                outcomes.append((what, "taken"))
                handle.load_state_dict(saved)
                model(integers(9, rank, 2)).backward()  # the residuals as they were before
                before = plain(handle.state_dict())
            except ValueError as error:
                outcomes.append((what, str(error).split(":")[0]))
                assert before == plain(handle.state_dict()), what
    refused = r"rank [01] cannot load its state_dict|the ranks were given checkpoints"
    for what, outcome in alike(outcomes):
        assert outcome == "taken" or re.match(refused, outcome), what
    # A value that is as good as the one before.
    assert [outcome for _, outcome in outcomes].count("taken") < 30
