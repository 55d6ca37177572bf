"""DiLoCo: buffers, frozen parameters, and parameters that are frozen or trained later."""

import contextlib
import copy
import re
import time
import warnings

import pytest
import torch
import torch.distributed as dist
from torch import nn

import gradwire
from gradwire.torch import diloco
from tests.distributed.ranks import alike, on, together
from tests.distributed.scenarios.common import bits, reaches
from tests.distributed.sites import LIMIT, members_of

OPTIONS = {"inner_steps": 4, "outer_lr": 0.7, "min_numel": 65}
STREAMING = {"fragments": 2, "delay": 3}


class Odd(nn.Module):
    """A model with all kinds of tensors that no optimizer trains, other ones on each rank."""

    def __init__(self, seed):
        super().__init__()
        torch.manual_seed(seed)
        self.frozen = nn.Linear(16, 32).requires_grad_(False)
        self.embed = nn.Embedding(8, 16, dtype=torch.bfloat16).requires_grad_(False)
        self.norm = nn.BatchNorm1d(32)
        self.head = nn.Linear(32, 8)
        self.target = copy.deepcopy(self.head).requires_grad_(False)  # as in BYOL
        self.register_buffer("mask", torch.full((4, 4), -torch.inf).triu(1))
        self.register_buffer("average", torch.rand(3, dtype=torch.float64), persistent=False)
        self.register_buffer("phases", torch.randn(3, dtype=torch.complex64))
        self.register_buffer("flag", torch.tensor(seed % 2 == 0))
        self.register_buffer("empty", torch.empty(0))
        self.register_buffer("expanded", torch.randn(1, 4).expand(3, 4))
        self.register_buffer("order", torch.randperm(8).to(torch.uint8))

    def forward(self, x):
        embedded = self.embed(torch.arange(8) % 8).float().mean(0)
        hidden = self.norm(self.frozen(x + embedded))
        self.average = 0.9 * self.average + 0.1  # another tensor in each step
        self.phases.mul_(1j)
        for each, ours in zip(self.target.parameters(), self.head.parameters(), strict=True):
            each.data.mul_(0.9).add_(ours.data, alpha=0.1)  # which its version does not count
        return self.head(hidden)


def tensors(model):
    """Copies of all parameters and buffers."""
    every = {**dict(model.named_parameters()), **dict(model.named_buffers())}
    return {name: each.detach().clone() for name, each in every.items()}


def bits_of(model):
    """The bits of all parameters and buffers."""
    return {name: bits(each) for name, each in tensors(model).items()}


def train(model, optimizer, rank, steps, outer):
    """Inner steps, each rank with data of its own."""
    for step in steps:
        inputs = torch.randn(8, 16, generator=torch.Generator().manual_seed(100 * step + rank))
        optimizer.zero_grad()
        model(inputs + rank).square().mean().backward()
        optimizer.step()
        outer.step()


def made(model, **options):
    """An optimizer and a DiLoCo of the parameters that are trained now."""
    trained = [each for each in model.parameters() if each.requires_grad]
    codec = gradwire.topk(0.1)
    return torch.optim.SGD(trained, 0.05), diloco.DiLoCo(model, codec, **{**OPTIONS, **options})


@pytest.mark.parametrize("options", [{}, STREAMING], ids=["diloco", "streaming"])
@on("ranks")
def test_ranks_begin_with_all_tensors_of_rank_0_and_share_averages(rank, size, options):
    model, later = Odd(rank), options.get("delay", 0)
    first = bits_of(Odd(0))
    optimizer, outer = made(model, **options)
    with outer:
        assert alike(bits_of(model)) == first
        begun = tensors(model)
        with outer.shared():
            alike(bits_of(model))
        train(model, optimizer, rank, range(4), outer)
        own = tensors(model)  # as it was sent
        train(model, optimizer, rank, range(4, 4 + later), outer)
        now = bits_of(model)
        with outer.shared():
            alike(bits_of(model))
            common = tensors(model)
        assert bits_of(model) == now, "restored"
        for name in ("norm.running_mean", "target.weight"):
            assert len(set(together(now[name]))) == size, "each rank has its own"
        names = ["norm.running_mean", "norm.running_var", "average", "phases", "target.weight"]
        for name in [] if later else names:
            mean = own[name].clone()
            dist.all_reduce(mean if not mean.is_complex() else torch.view_as_real(mean))
            torch.testing.assert_close(mean / size, common[name], rtol=1e-5, atol=1e-6)
        for name in ("frozen.weight", "embed.weight", "mask", "flag", "order"):
            assert torch.equal(common[name], begun[name])
        # Sent with the first of the fragments, which follow each other within four inner steps.
        assert common["norm.num_batches_tracked"] == 4 // options.get("fragments", 1)


@on("two")
def test_a_resumed_run_shares_the_same_averages(rank, tmp_path):
    """The shared model has the bits of a run that is not interrupted."""
    model, file = Odd(rank), tmp_path / f"{rank}.pt"
    optimizer, outer = made(model, **STREAMING)
    with outer:
        train(model, optimizer, rank, range(10), outer)
        torch.save({"model": tensors(model), "outer": outer.state_dict()}, file)
        assert outer.state_dict()[f"rank{rank}"]["averaged"], "some are pending"
        train(model, optimizer, rank, range(10, 13), outer)
        with outer.shared():
            expected = bits_of(model)
    model = Odd(rank + 10)
    optimizer, outer = made(model, **STREAMING)
    with outer:
        saved = torch.load(file, weights_only=True)
        with torch.no_grad():
            for name, each in [*model.named_parameters(), *model.named_buffers()]:
                whole = slice(1) if name == "expanded" else ...
                each[whole].copy_(saved["model"][name][whole])
        outer.load_state_dict(saved["outer"])
        train(model, optimizer, rank, range(10, 13), outer)
        with outer.shared():
            assert bits_of(model) == expected
        own = outer.state_dict()
        own[f"rank{rank}"]["untrained"] = {"norm.running_mean": torch.zeros(5)}
        said = re.escape("'norm.running_mean' is float32 (32,) in this model")
        with pytest.raises(ValueError, match=said):
            outer.load_state_dict(own)


@pytest.mark.parametrize(
    ("how", "text"),
    [
        ("unfrozen", "['0.weight', '0.bias'] are trained, and are not exchanged"),
        ("added", "['3.weight', '3.bias'] are trained, and are not exchanged"),
        ("replaced", "['2.weight'] are trained, and are not exchanged"),
        ("frozen", ""),
        ("toggled", ""),
    ],
)
@on("two")
def test_a_change_of_the_trained_parameters_is_told(rank, how, text):
    first, last = nn.Linear(64, 64).requires_grad_(False), nn.Linear(64, 16)
    model = nn.Sequential(first, nn.ReLU(), last)
    optimizer, outer = made(model)

    def step():
        model(torch.randn(8, 64)).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        outer.step()

    def shared():
        return [bits(each) for each in outer.state_dict()[f"rank{rank}"]["shared"].values()]

    with outer, warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for _ in range(4):
            step()
        if how == "unfrozen":
            first.requires_grad_(True)
            optimizer.add_param_group({"params": list(first.parameters())})
        elif how == "added":
            model.append(nn.Linear(16, 4))
            optimizer.add_param_group({"params": list(model[3].parameters())})
        elif how == "replaced":
            last.weight = nn.Parameter(last.weight.detach().clone())
        elif how == "frozen":
            last.weight.requires_grad_(False)
        elif how == "toggled":  # as in a GAN, back before the optimizer's step
            last.requires_grad_(False)
            last.requires_grad_(True)
        for _ in range(3):
            step()
        before = shared()
        if text:
            with pytest.raises(ValueError, match=re.escape(text)):
                step()
            assert before == shared()
        else:
            step()
            assert before != shared()
    told = [str(each.message) for each in caught if "no longer" in str(each.message)]
    assert len(told) == (how == "frozen")


@on("two")
def test_buffers_of_other_shapes_are_refused(rank):
    model = nn.Linear(16, 16)
    model.register_buffer("extra", torch.zeros(3 + rank))
    with pytest.raises(ValueError, match="buffers or frozen parameters"):
        diloco.DiLoCo(model, gradwire.topk(0.1), **OPTIONS)


@pytest.mark.timeout(300)
@on("three")
def test_a_rank_that_joins_has_the_frozen_parameters_and_averages(rank, size, tmp_path):
    ready, found = tmp_path / "ready", {}
    deadline = time.monotonic() + LIMIT
    assert rank < size - 1 or reaches(ready.exists, LIMIT)
    model, options = Odd(rank), {**OPTIONS, **STREAMING, "membership": members_of(tmp_path)}
    outer = diloco.DiLoCo(model, gradwire.topk(0.1), **options)
    optimizer = torch.optim.SGD([each for each in model.parameters() if each.requires_grad], 0.05)
    alone = bits(model.frozen.weight), bits(model.embed.weight)

    def step():
        assert time.monotonic() < deadline
        train(model, optimizer, rank, range(outer.inner_step, outer.inner_step + 1), outer)
        with outer.shared():
            found[outer.inner_step] = bits_of(model)
        time.sleep(0.01)

    with contextlib.closing(outer):
        while outer.world_size < size:
            step()
            if rank == 0 and outer.world_size == size - 1 and outer.rounds >= 4:
                ready.touch()
        end = outer.rounds + 6
        while outer.rounds < end:
            step()
    alike(alone)
    every = together(found)
    assert len(every[-1]) >= 6
    for number, late in every[-1].items():
        for each in every:
            assert each.get(number, late) == late
