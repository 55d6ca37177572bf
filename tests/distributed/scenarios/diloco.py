"""Training across sites over real processes."""

from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
from torch import nn

import gradwire
from gradwire.torch import diloco
from gradwire.torch.errors import ExchangeError, TensorError
from tests.deadlines import stretched
from tests.distributed.scenarios.common import batch, bits, fingerprint, network, plain

WAYS: dict[str, dict[str, Any]] = {
    "diloco": {"inner_steps": 4},
    "streaming": {"inner_steps": 4, "fragments": 2, "delay": 3},
    "fine": {"inner_steps": 4, "fragments": 4, "delay": 3},
    "no momentum": {"inner_steps": 3, "outer_momentum": 0.0, "outer_lr": 1.0},
}


def made(model: nn.Module, way: str, **options: Any) -> diloco.DiLoCo:
    """A small DiLoCo."""
    codec = gradwire.sparseloco(k=16, tile=(16, 16), chunk=256)
    return diloco.DiLoCo(model, codec, min_numel=65, **WAYS[way], **options)


def advance(model: nn.Module, optimizer: Any, rank: int, steps: range, outer: Any = None) -> None:
    """Inner steps; with a handle that is not hooked to the optimizer, its steps as well."""
    for step in steps:
        inputs, targets = batch(rank, step)
        optimizer.zero_grad()
        nn.functional.mse_loss(model(inputs), targets).backward()
        optimizer.step()
        if outer is not None:
            outer.step()


def replicas(rank: int, world_size: int, way: str) -> dict[str, Any]:
    """What ranks share is the same on all of them; what they own is not, between rounds."""
    model = network(seed=rank)  # other parameters on each rank: those of rank 0 count
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    with made(model, way, optimizer=optimizer) as outer:
        begun = fingerprint(model)
        advance(model, optimizer, rank, range(14))
        own = fingerprint(model)
        with outer.shared():
            common = fingerprint(model)
        found = {
            "begun": begun,
            "common": common,
            "own": own,
            "restored": fingerprint(model) == own,
            "rounds": outer.rounds,
            "steps": outer.inner_step,
            "report": outer.report(),
        }
    advance(model, optimizer, rank, range(14, 30))  # closed: the optimizer is on its own
    return found


def against_plain(rank: int, world_size: int) -> dict[str, bool]:
    """With every entry sent, it is what the paper's algorithm computes with a plain all-reduce."""
    model, other = network(), network()
    inner = torch.optim.SGD(model.parameters(), lr=0.05)
    shared = [each.detach().clone() for each in other.parameters()]
    outer_steps = torch.optim.SGD(shared, lr=0.5, momentum=0.9, nesterov=True)
    inner_other = torch.optim.SGD(other.parameters(), lr=0.05)
    same = []
    with diloco.DiLoCo(
        model, gradwire.topk(1.0), inner_steps=3, outer_lr=0.5, min_numel=65
    ) as outer:
        for turn in range(4):
            steps = range(3 * turn, 3 * turn + 3)
            advance(model, inner, rank, steps, outer)
            advance(other, inner_other, rank, steps)
            with torch.no_grad():
                for each, own in zip(shared, other.parameters(), strict=True):
                    change = each - own
                    torch.distributed.all_reduce(change)
                    each.grad = change.div_(world_size)
                outer_steps.step()
                for each, own in zip(shared, other.parameters(), strict=True):
                    own.copy_(each)
            pairs = zip(model.parameters(), other.parameters(), strict=True)
            same.append(all(torch.allclose(a, b, rtol=0, atol=1e-6) for a, b in pairs))
    return {"same": all(same)}


def resume(rank: int, world_size: int, way: str, folder: str) -> dict[str, Any]:
    """Train, save in the middle, and train on; then load and train the same steps again."""
    model = network()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    with made(model, way) as outer:
        advance(model, optimizer, rank, range(9), outer)
        file = Path(folder) / f"{way}{rank}.pt"
        saved = {"model": model.state_dict(), "optimizer": optimizer.state_dict()}
        torch.save({**saved, "outer": outer.state_dict()}, file)
        advance(model, optimizer, rank, range(9, 18), outer)
        expected = plain_of(outer.state_dict()), fingerprint(model)
    model = network(seed=5)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    with made(model, way) as outer:
        read = torch.load(file, weights_only=True)
        model.load_state_dict(read["model"])
        optimizer.load_state_dict(read["optimizer"])
        outer.load_state_dict(read["outer"])
        steps = outer.inner_step
        advance(model, optimizer, rank, range(9, 18), outer)
        found = plain_of(outer.state_dict()), fingerprint(model)
    return {"same": found == expected, "steps": steps}


def plain_of(saved: dict[str, Any]) -> list[Any]:
    """The bits of a checkpoint."""
    return plain(saved)


def other_size(rank: int, world_size: int, folder: str, old: int) -> dict[str, Any]:
    """Load what another number of ranks has saved: shared parameters as they were, residuals."""
    model = network(seed=7)
    files = [Path(folder) / f"streaming{each}.pt" for each in range(old)]
    every = [torch.load(each, weights_only=True)["outer"] for each in files]
    with made(model, "streaming") as outer:
        try:
            outer.load_state_dict(every[0] if rank else {}, "drop")
        except ValueError as error:
            refused = str(error)
        outer.load_state_dict(every)
        outer.restore()
        mine = outer.state_dict()[f"rank{rank}"]
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
        advance(model, optimizer, rank, range(9, 15), outer)
        with outer.shared():
            common = fingerprint(model)
    first = every[0]["rank0"]["shared"]
    total = {
        name: sum(one[f"rank{each}"]["residual"][name] for each, one in enumerate(every))
        for name in mine["residual"]
    }
    return {
        "refused": refused,
        "shared": all(torch.equal(mine["shared"][name], each) for name, each in first.items()),
        "residuals": all(
            torch.allclose(mine["residual"][name] * world_size, each, atol=1e-6)
            for name, each in total.items()
        ),
        "common": common,
    }


def conserves(rank: int, world_size: int) -> dict[str, Any]:
    """With a delay, every inner step is sent once: also across a restore and a bad exchange."""
    model = network()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    own = dict(model.named_parameters())
    moved = {name: torch.zeros_like(each) for name, each in own.items()}
    found: dict[str, Any] = {"errors": 0}
    options: dict[str, Any] = {"inner_steps": 4, "fragments": 2, "delay": 3, "outer_lr": 1.0}
    with diloco.DiLoCo(
        model, gradwire.topk(0.1), outer_momentum=0.0, min_numel=65, **options
    ) as outer:
        begun = first_of(outer, "shared")
        for step in range(22):
            before = {name: each.detach().clone() for name, each in own.items()}
            advance(model, optimizer, rank, range(step, step + 1))
            for name, each in own.items():
                moved[name] += before[name] - each.detach()
            bad = rank == 1 and step == 9  # sent in this step, and mended afterwards
            if bad:
                kept = own["0.weight"].detach().clone()
                with torch.no_grad():
                    own["0.weight"][1, 2] = float("nan")
            try:
                outer.step()
            except TensorError:
                found["errors"] += 1
            if bad:
                with torch.no_grad():
                    own["0.weight"].copy_(kept)
            if rank == 1 and step == 16:
                lost = unsent(outer, own)
                outer.restore()
                for name, gone in lost.items():
                    moved[name] -= gone
        found["under way"] = sorted(first_of(outer, "pending"))
        shared, pending = first_of(outer, "shared"), first_of(outer, "pending")
        left, residual = unsent(outer, own), first_of(outer, "residual")
    off = []
    for name in own:
        mine = moved[name] - left[name]
        if name in residual:
            mine = mine - residual[name]
        torch.distributed.all_reduce(mine)
        theirs = world_size * (begun[name] - shared[name])
        if name in pending:
            theirs = theirs + world_size * pending[name]
        off.append(float((mine - theirs).abs().max()))
    return {**found, "off": max(off), "rounds": outer.rounds}


def unsent(outer: diloco.DiLoCo, own: dict[str, torch.nn.Parameter]) -> dict[str, torch.Tensor]:
    """What a rank has trained since its parameters were sent, or applied, the last time."""
    base = {**first_of(outer, "shared"), **first_of(outer, "sent")}
    return {name: base[name] - each.detach() for name, each in own.items()}


def failures(rank: int, world_size: int) -> dict[str, Any]:
    """NaN on one rank is an error on all, and the next round goes on."""
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)
    found: dict[str, Any] = {}
    with made(model, "diloco") as outer:
        advance(model, optimizer, rank, range(7), outer)
        before = {name: bits(each) for name, each in first_of(outer, "shared").items()}
        if rank == 1:
            with torch.no_grad():
                dict(model.named_parameters())["0.weight"][1, 2] = float("inf")
        try:
            advance(model, optimizer, rank, range(7, 8), outer)
        except TensorError as error:
            found["error"] = error.name, error.rank
        after = {name: bits(each) for name, each in first_of(outer, "shared").items()}
        found["unchanged"] = before == after
        outer.restore()
        advance(model, optimizer, rank, range(8, 12), outer)
        found["rounds"] = outer.rounds
        found["finite"] = all(bool(torch.isfinite(each).all()) for each in model.parameters())
        found["shared"] = fingerprint(model)
    try:
        diloco.DiLoCo(model, gradwire.topk(0.1 + rank / 10))
    except ValueError as error:
        found["disagree"] = str(error)
    return found


def replaces(rank: int, world_size: int) -> dict[str, Any]:
    """A checkpoint replaces a run that has diverged; one of other fragments replaces nothing."""
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)
    found: dict[str, Any] = {}
    with made(model, "streaming") as outer:
        advance(model, optimizer, rank, range(9), outer)
        saved, kept = outer.state_dict(), outer.rounds
        good = plain_of(saved)
        if rank == 1:
            with torch.no_grad():
                dict(model.named_parameters())["0.weight"][1, 2] = float("nan")
        advance(model, optimizer, rank, range(9, 10), outer)  # and sends it
        outer.load_state_dict(saved)
        found["replaced"] = plain_of(outer.state_dict()) == good
        found["rounds"] = outer.rounds == kept
        outer.restore()
        advance(model, optimizer, rank, range(9, 15), outer)
        found["finite"] = all(bool(torch.isfinite(each).all()) for each in model.parameters())
    with made(model, "fine") as other:
        advance(model, optimizer, rank, range(9), other)
        before = plain_of(other.state_dict())
        try:
            other.load_state_dict(saved)
        except ValueError as error:
            found["refused"] = str(error)
        found["unchanged"] = plain_of(other.state_dict()) == before
        advance(model, optimizer, rank, range(9, 15), other)
        found["common"] = bits_of(other)
    return found


def bits_of(outer: diloco.DiLoCo) -> bytes:
    """The bits of the shared parameters."""
    return b"".join(bits(each) for each in first_of(outer, "shared").values())


def first_of(outer: diloco.DiLoCo, kind: str) -> dict[str, torch.Tensor]:
    """One kind of tensors in this rank's checkpoint."""
    ((_, saved),) = outer.state_dict().items()
    tensors: dict[str, torch.Tensor] = saved[kind]
    return tensors


def stops(rank: int, world_size: int) -> str:
    """One rank leaves its loop: the others get an error, and can still save."""
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)
    outer = made(model, "streaming", timeout=timedelta(seconds=stretched(3)))
    advance(model, optimizer, rank, range(5), outer)
    if rank == 1:
        outer.close(timedelta(0))
        return ""
    try:
        advance(model, optimizer, rank, range(5, 20), outer)
    except ExchangeError as error:
        assert set(outer.state_dict()["rank0"]["pending"]) <= set(dict(model.named_parameters()))
        return str(error)
    return "no error"


KINDS = ("shared", "velocity", "pending", "sent", "residual")


def first_tensor(kind: str, change: Callable[[torch.Tensor], torch.Tensor]) -> Any:
    """Return what changes a tensor of a checkpoint."""

    def damage(mine: dict[str, Any]) -> None:
        name = min(mine[kind])
        mine[kind] = {**mine[kind], name: change(mine[kind][name].clone())}

    return damage


def with_value(value: float) -> Callable[[torch.Tensor], torch.Tensor]:
    def change(tensor: torch.Tensor) -> torch.Tensor:
        tensor.view(-1)[-1] = value
        return tensor

    return change


DAMAGE: dict[str, Callable[[dict[str, Any]], None]] = {
    **{f"nan in {kind}": first_tensor(kind, with_value(float("nan"))) for kind in KINDS},
    "infinite": first_tensor("velocity", with_value(float("inf"))),
    "double": first_tensor("shared", torch.Tensor.double),
    "half": first_tensor("pending", torch.Tensor.half),
    "integers": first_tensor("velocity", torch.Tensor.int),
    "complex": first_tensor("shared", lambda each: each.to(torch.complex64)),
    "sparse": first_tensor("shared", torch.Tensor.to_sparse),
    "meta": first_tensor("shared", lambda each: each.to("meta")),
    "meta residual": first_tensor("residual", lambda each: each.to("meta")),
    "no tensor": lambda mine: mine.update(shared={**mine["shared"], min(mine["shared"]): [1.0]}),
    "nested": lambda mine: mine.update(outer="[" * 100_000),
    "nested about": lambda mine: mine.update(about="[" * 100_000),
    "no text": lambda mine: mine.update(outer=b"{}"),
    "of another run": first_tensor("shared", lambda each: each + 1e-3),
    "other averages": first_tensor("pending", lambda each: each + 1e-3),
    "other momentum": first_tensor("velocity", lambda each: -each),
}


def damaged(rank: int, world_size: int) -> dict[str, str]:
    """One rank is given a damaged checkpoint: all refuse, and nothing has changed."""
    model = network()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    found = {}
    with made(model, "streaming") as outer:
        advance(model, optimizer, rank, range(9), outer)
        saved = outer.state_dict()
        advance(model, optimizer, rank, range(9, 11), outer)
        before = plain_of(outer.state_dict()), fingerprint(model)
        for name, damage in DAMAGE.items():
            mine = dict(saved[f"rank{rank}"])
            if rank == 1:
                damage(mine)
            try:
                outer.load_state_dict({f"rank{rank}": mine})
                found[name] = "no error"
            except ValueError as error:
                found[name] = str(error)
            assert (plain_of(outer.state_dict()), fingerprint(model)) == before, name
        outer.load_state_dict(saved)
    return found
