"""DiLoCo with buffers and frozen parameters, and parameters that are frozen or trained later."""

import contextlib
import copy
import time
import warnings
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

import gradwire
from gradwire.torch import diloco
from tests.distributed.scenarios.common import bits
from tests.distributed.scenarios.membership import LIMIT, members_of

OPTIONS: dict[str, Any] = {"inner_steps": 4, "outer_lr": 0.7, "min_numel": 65}
STREAMING: dict[str, Any] = {"fragments": 2, "delay": 3}


class Odd(nn.Module):
    """A model with all kinds of tensors that no optimizer trains, other ones on each rank."""

    mask: torch.Tensor
    average: torch.Tensor
    phases: torch.Tensor

    def __init__(self, seed: int) -> None:
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

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        embedded = self.embed(torch.arange(8) % 8).float().mean(0)
        hidden = self.norm(self.frozen(x + embedded))
        self.average = 0.9 * self.average + 0.1  # another tensor in each step
        self.phases.mul_(1j)
        for each, ours in zip(self.target.parameters(), self.head.parameters(), strict=True):
            each.data.mul_(0.9).add_(ours.data, alpha=0.1)  # which its version does not count
        out: torch.Tensor = self.head(hidden)
        return out


def tensors(model: nn.Module) -> dict[str, torch.Tensor]:
    """Copies of all parameters and buffers."""
    every = {**dict(model.named_parameters()), **dict(model.named_buffers())}
    return {name: each.detach().clone() for name, each in every.items()}


def differing(model: nn.Module) -> list[str]:
    """The names of the tensors that are not the same bits on all ranks."""
    mine = {name: bits(each.contiguous()) for name, each in tensors(model).items()}
    every: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(every, mine)
    return [name for name in mine if len({each[name] for each in every}) > 1]


def train(model: nn.Module, optimizer: Any, rank: int, steps: range, outer: Any = None) -> None:
    """Inner steps, each rank with data of its own."""
    for step in steps:
        inputs = torch.randn(8, 16, generator=torch.Generator().manual_seed(100 * step + rank))
        optimizer.zero_grad()
        model(inputs + rank).square().mean().backward()
        optimizer.step()
        if outer is not None:
            outer.step()


def made(model: nn.Module, **options: Any) -> tuple[Any, diloco.DiLoCo]:
    """An optimizer and a DiLoCo of the parameters that are trained now."""
    trained = [each for each in model.parameters() if each.requires_grad]
    codec = gradwire.topk(0.1)
    return torch.optim.SGD(trained, 0.05), diloco.DiLoCo(model, codec, **{**OPTIONS, **options})


def shares(rank: int, world_size: int, options: dict[str, Any]) -> dict[str, Any]:
    """All begin with the tensors of rank 0, and share averages of what changes."""
    model = Odd(rank)
    first = tensors(Odd(0))
    optimizer, outer = made(model, **options)
    with outer:
        found: dict[str, Any] = {"begun": differing(model)}
        begun = tensors(model)
        found["first"] = all(torch.equal(begun[name], each) for name, each in first.items())
        with outer.shared():
            found["at first"] = differing(model)
        train(model, optimizer, rank, range(4), outer)
        own = tensors(model)  # as it was sent
        later = options.get("delay", 0)
        train(model, optimizer, rank, range(4, 4 + later), outer)
        now = tensors(model)
        with outer.shared():
            found["shared"], common = differing(model), tensors(model)
        found["restored"] = all(torch.equal(each, now[key]) for key, each in tensors(model).items())
        found["own"] = differing(model)
        names = ["norm.running_mean", "norm.running_var", "average", "phases", "target.weight"]
        for name in [] if later else names:
            mean = own[name].clone()
            dist.all_reduce(mean if not mean.is_complex() else torch.view_as_real(mean))
            assert torch.allclose(mean / world_size, common[name], rtol=1e-5, atol=1e-6), name
        unchanged = ["frozen.weight", "embed.weight", "mask", "flag", "order"]
        found["unchanged"] = all(torch.equal(common[name], begun[name]) for name in unchanged)
        found["counted"] = common["norm.num_batches_tracked"].item()
        found["bytes"] = outer.report().wire_bytes
    return found


def resumes(rank: int, world_size: int, folder: str) -> dict[str, Any]:
    """The shared model of a run that is resumed has the bits of one that is not interrupted."""
    model = Odd(rank)
    optimizer, outer = made(model, **STREAMING)
    file = Path(folder) / f"{rank}.pt"
    with outer:
        train(model, optimizer, rank, range(10), outer)
        torch.save({"model": tensors(model), "outer": outer.state_dict()}, file)
        pending = outer.state_dict()[f"rank{rank}"]["averaged"]
        train(model, optimizer, rank, range(10, 13), outer)
        with outer.shared():
            expected = tensors(model)
    model = Odd(rank + 10)
    optimizer, outer = made(model, **STREAMING)
    with outer:
        saved = torch.load(file, weights_only=True)
        with torch.no_grad():
            for name, each in [*model.named_parameters(), *model.named_buffers()]:
                part = each[:1] if name == "expanded" else each
                part.copy_(saved["model"][name][:1] if name == "expanded" else saved["model"][name])
        outer.load_state_dict(saved["outer"])
        train(model, optimizer, rank, range(10, 13), outer)
        with outer.shared():
            found = tensors(model)
        own = outer.state_dict()
        own[f"rank{rank}"]["untrained"] = {"norm.running_mean": torch.zeros(5)}
        try:
            outer.load_state_dict(own)
        except ValueError as error:
            refused = str(error)
    return {
        "pending": bool(pending),
        "same": [name for name, each in expected.items() if not torch.equal(each, found[name])],
        "refused": refused,
    }


def changes(rank: int, world_size: int, how: str) -> dict[str, Any]:
    """The set of parameters changes while a model is trained."""
    first, last = nn.Linear(64, 64).requires_grad_(False), nn.Linear(64, 16)
    model = nn.Sequential(first, nn.ReLU(), last)
    optimizer, outer = made(model)

    def step() -> None:
        model(torch.randn(8, 64)).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        outer.step()

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
        error = ""
        for _ in range(3):
            step()
        before = outer.state_dict()[f"rank{rank}"]["shared"]
        try:
            step()
        except ValueError as raised:
            error = str(raised)
        after = outer.state_dict()[f"rank{rank}"]["shared"]
    texts = [str(each.message) for each in caught if "no longer" in str(each.message)]
    same = all(torch.equal(each, after[name]) for name, each in before.items())
    return {"error": error, "warnings": texts, "unchanged": same}


def other_shapes(rank: int, world_size: int) -> str:
    """Models whose buffers have different shapes are refused on all ranks."""
    model = nn.Linear(16, 16)
    model.register_buffer("extra", torch.zeros(3 + rank))
    try:
        diloco.DiLoCo(model, gradwire.topk(0.1), **OPTIONS)
    except ValueError as error:
        return str(error)
    return "no error"


def joins(rank: int, world_size: int, folder: str) -> dict[str, Any]:
    """A rank that comes late has the frozen parameters and the averages of the others."""
    ready = Path(folder) / "ready"
    deadline = time.monotonic() + LIMIT
    while rank == world_size - 1 and not ready.exists():
        assert time.monotonic() < deadline
        time.sleep(0.1)
    model = Odd(rank)
    options: dict[str, Any] = {**OPTIONS, **STREAMING}
    members = members_of(folder)
    outer = diloco.DiLoCo(model, gradwire.topk(0.1), membership=members, **options)
    optimizer = torch.optim.SGD([each for each in model.parameters() if each.requires_grad], 0.05)
    found: dict[int, dict[str, bytes]] = {}
    alone = {"frozen": bits(model.frozen.weight), "embed": bits(model.embed.weight)}

    def step() -> None:
        assert time.monotonic() < deadline
        train(model, optimizer, rank, range(outer.inner_step, outer.inner_step + 1), outer)
        with outer.shared():
            every = tensors(model)
        found[outer.inner_step] = {name: bits(each.contiguous()) for name, each in every.items()}
        time.sleep(0.01)

    with contextlib.closing(outer):
        while outer.world_size < world_size:
            step()
            if rank == 0 and outer.world_size == world_size - 1 and outer.rounds >= 4:
                ready.touch()
        end = outer.rounds + 6
        while outer.rounds < end:
            step()
    return {"found": found, "alone": alone}
