"""FSDP2 on four ranks as two nodes of two."""

import warnings
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import nn
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_state_dict,
    set_state_dict,
)
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard

import gradwire
import gradwire.torch
import gradwire.torch.ddp
import gradwire.torch.fsdp
from gradwire.schedule import Accordion
from gradwire.torch.fsdp import GradientError, Handle
from tests.distributed.scenarios.common import about, batch, network, plain
from tests.distributed.scenarios.parity import preset


def mesh() -> DeviceMesh:
    """Two nodes of two ranks."""
    return init_device_mesh("cpu", (2, 2), mesh_dim_names=("replicate", "shard"))


def sharded(over: DeviceMesh, seed: int = 0, **options: Any) -> Any:
    """A small network with three FSDP modules, and rows that cannot be halved."""
    torch.manual_seed(seed)
    model = nn.Sequential(
        nn.Linear(32, 97), nn.LayerNorm(97), nn.GELU(), nn.Linear(97, 64), nn.Linear(64, 16)
    )
    for each in (model[0], model[3]):
        fully_shard(each, mesh=over, **options)
    fully_shard(model, mesh=over, **options)
    return model


def attached(model: nn.Module, codec: Any, both: DeviceMesh, **options: Any) -> Handle:
    """Attach without a warning of a missing optimizer."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", gradwire.torch.fsdp.PairingWarning)
        return gradwire.torch.fsdp.attach(
            model, codec, mesh=both["replicate"], **{"min_numel": 64, **options}
        )


def steps(
    model: nn.Module, rank: int, count: range, optimizer: Any = None, lr: float = 0.05
) -> None:
    """Train with plain SGD, or as the optimizer does."""
    if optimizer is None:
        optimizer = torch.optim.SGD(model.parameters(), lr=lr)
    for step in count:
        inputs, targets = batch(rank, step)
        optimizer.zero_grad()
        nn.functional.mse_loss(model(inputs), targets).backward()
        optimizer.step()


def full(model: Any) -> dict[str, torch.Tensor]:
    """All parameters, whole."""
    return {name: each.full_tensor().detach() for name, each in model.named_parameters()}


def distance(one: nn.Module, other: nn.Module) -> float:
    """The largest difference of a parameter."""
    a, b = full(one), full(other)
    return max(float((a[name] - b[name]).abs().max()) for name in a)


def alike(model: nn.Module) -> bool:
    """Whether all ranks have the same bits."""
    mine = {name: each.numpy().tobytes() for name, each in full(model).items()}
    every: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(every, mine)
    return all(each == every[0] for each in every)


def left(handle: Handle) -> dict[str, np.ndarray]:
    """The residuals of this rank's shards."""
    (saved,) = handle.state_dict().values()
    return {name: each.numpy().copy() for name, each in saved["residual"].items()}


def against_hsdp(rank: int, world_size: int) -> dict[str, Any]:
    """At ratio 1, train as torch's own HSDP, under several policies."""
    both, found = mesh(), cast(dict[str, Any], {})
    policies: dict[str, dict[str, Any]] = {
        "plain": {},
        "bf16": {"mp_policy": MixedPrecisionPolicy(torch.float32, torch.bfloat16)},
        "f16": {"mp_policy": MixedPrecisionPolicy(torch.float32, torch.float16)},
    }
    for name, options in policies.items():
        reference = sharded(both, **options)
        steps(reference, rank, range(4))
        model = sharded(both["shard"], **options)
        with attached(model, gradwire.topk(ratio=1.0), both):
            steps(model, rank, range(4))
        found[name] = distance(reference, model)
    for name in ("factor", "sums"):
        pair = [sharded(both), sharded(both["shard"])]
        for each in pair:
            for module in each.modules():
                if isinstance(module, FSDPModule):
                    module.set_force_sum_reduction_for_comms(True)
                    if name == "factor":
                        module.set_gradient_divide_factor(8.0)
        steps(pair[0], rank, range(3))
        with attached(pair[1], gradwire.topk(ratio=1.0), both):
            steps(pair[1], rank, range(3))
        found[name] = distance(*pair)
    return found


def bound(rank: int, world_size: int) -> dict[str, Any]:
    """Train while ranks are bound to devices, as by ``init_process_group(device_id=)``."""
    both, world = mesh(), cast(Any, dist.group.WORLD)
    model = sharded(both["shard"])
    world.bound_device_id = torch.device("cpu", 0)
    try:
        with attached(model, gradwire.topk(ratio=0.05), both) as handle:
            steps(model, rank, range(4))
            carried_by, residuals = handle.report().carried_by, left(handle)
    finally:
        world.bound_device_id = None
    return {
        "alike": alike(model),
        "carried_by": carried_by,
        "parameters": {name: each.numpy().tobytes() for name, each in full(model).items()},
        "residuals": {name: each.tobytes() for name, each in residuals.items()},
    }


def replicas(rank: int, world_size: int) -> dict[str, Any]:
    """Every exchange; conservation; paused passes; what follows detach()."""
    both, found = mesh(), cast(dict[str, Any], {"alike": []})
    for name, options in (
        ("topk", {"ratio": 0.05}),
        ("topk", {"ratio": 0.05, "memory": gradwire.memory.Residual(low_memory=True).get_config()}),
        ("randomk", {"ratio": 0.05}),
        ("scalecom", {"ratio": 0.05}),
    ):
        model = sharded(both["shard"])
        with attached(model, preset(name, **options), both) as handle:
            steps(model, rank, range(5))
            found["alike"].append(alike(model))
    reference, model = sharded(both), sharded(both["shard"])
    handle = attached(model, gradwire.topk(ratio=0.05), both)
    with handle.paused():
        steps(model, rank, range(2))
    handle.detach()
    steps(model, rank, range(2, 3))
    steps(reference, rank, range(3))
    found["plain"] = distance(reference, model)
    return found


def accumulation(rank: int, world_size: int) -> dict[str, Any]:
    """Gradients of several backward passes, exchanged once."""
    both, found = mesh(), cast(dict[str, Any], {})

    def train(model: Any, how: str) -> None:
        optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
        for step in range(2):
            optimizer.zero_grad()
            for part in range(3):
                last = part == 2
                if how == "gradient":
                    model.set_requires_gradient_sync(last)
                elif how == "all-reduce":
                    model.set_requires_all_reduce(last)
                model.set_is_last_backward(last)
                inputs, targets = batch(rank, 3 * step + part)
                (nn.functional.mse_loss(model(inputs), targets) / 3).backward()
            optimizer.step()

    for how in ("gradient", "all-reduce", "each"):
        reference, model = sharded(both), sharded(both["shard"])
        train(reference, how)
        with attached(model, gradwire.topk(ratio=1.0), both) as handle:
            train(model, how)
            found[how] = distance(reference, model)
            found[f"{how} steps"] = handle.step
    return found


def bad_gradients(rank: int, world_size: int) -> dict[str, Any]:
    """One rank has a loss that is not finite: all roll back, and go on."""
    both, found = mesh(), cast(dict[str, Any], {})
    model = sharded(both["shard"])
    with attached(model, gradwire.topk(ratio=0.1), both) as handle:
        steps(model, rank, range(2))
        before = left(handle)
        inputs, targets = batch(rank, 2)
        if rank == 3:
            inputs[0, 0] = torch.inf
        model.zero_grad()
        try:
            nn.functional.mse_loss(model(inputs), targets).backward()
        except GradientError as error:
            found["error"] = (error.name is not None, error.count > 0, error.rank)
        after = left(handle)
        found["kept"] = all(np.array_equal(before[name], after[name]) for name in before)
        model.zero_grad()
        steps(model, rank, range(3, 5))
        found["steps"], found["alike"] = handle.step, alike(model)
    scaler = torch.amp.GradScaler("cpu", init_scale=64.0)
    model = sharded(both["shard"])
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    with attached(model, gradwire.topk(ratio=0.1), both, grad_scaler=scaler) as handle:
        for step in range(4):
            inputs, targets = batch(rank, step)
            optimizer.zero_grad()
            loss = nn.functional.mse_loss(model(inputs), targets)
            scaler.scale(loss * torch.inf if step == 2 and rank == 1 else loss).backward()
            scaler.step(optimizer)
            scaler.update()
        found["scale"], found["scaled steps"] = scaler.get_scale(), handle.step
        found["scaled alike"] = alike(model)
    return found


class Interrupted(Exception):
    """Raised in the middle of a backward pass."""


def interrupted(rank: int, world_size: int) -> dict[str, Any]:
    """An exception leaves a backward pass half-way, on all ranks; the pass leaves no trace."""
    both, found = mesh(), cast(dict[str, Any], {})
    model = sharded(both["shard"])
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    with attached(model, gradwire.topk(ratio=0.1), both) as handle:
        steps(model, rank, range(2), optimizer)
        before = left(handle)

        def stop(*_: Any) -> None:
            raise Interrupted

        def watch(module: nn.Module, given: Any, output: torch.Tensor) -> None:
            output.register_hook(stop)

        inputs, targets = batch(rank, 2)
        hidden = model[2].register_forward_hook(watch)
        optimizer.zero_grad()
        try:
            nn.functional.mse_loss(model(inputs), targets).backward()
        except Interrupted:
            found["raised"] = True
        hidden.remove()
        model.reset_iter_state()  # what FSDP asks for
        after = left(handle)
        found["kept"] = all(np.array_equal(before[name], after[name]) for name in before)
        found["step"] = handle.step
        steps(model, rank, range(3, 5), optimizer)
        found["alike"], found["steps"] = alike(model), handle.step
    return found


def resume(rank: int, world_size: int, folder: str) -> dict[str, Any]:
    """Train 7 warm steps; or 4, save through DCP, start again, and 3. Then with other nodes."""
    both, found = mesh(), cast(dict[str, Any], {})

    def make(seed: int = 0) -> Any:
        model = sharded(both["shard"], seed)
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
        handle = attached(model, gradwire.adam(ratio=0.01), both, optimizer=optimizer)
        return model, optimizer, handle

    model, optimizer, handle = make()
    steps(model, rank, range(4), optimizer)

    def everything(model: Any, optimizer: Any, handle: Any) -> dict[str, Any]:
        weights, moments = get_state_dict(model, optimizer)
        return {"model": weights, "optimizer": moments, "gradwire": handle}

    dcp.save(everything(model, optimizer, handle), checkpoint_id=Path(folder) / "dcp")
    states = handle.gathered_state_dict(None)
    found["schedule"] = handle.report().schedule
    steps(model, rank, range(4, 7), optimizer)
    whole = {name: each.numpy().tobytes() for name, each in full(model).items()}
    kept = plain(handle.state_dict())
    found["alike"] = alike(model)
    handle.detach()

    model, optimizer, handle = make(seed=3)
    loaded = everything(model, optimizer, handle)
    dcp.load(loaded, checkpoint_id=Path(folder) / "dcp")
    set_state_dict(
        model,
        optimizer,
        model_state_dict=loaded["model"],
        optim_state_dict=loaded["optimizer"],
        options=StateDictOptions(strict=False),
    )
    steps(model, rank, range(4, 7), optimizer)
    found["parameters"] = whole == {
        name: each.numpy().tobytes() for name, each in full(model).items()
    }
    found["states"] = kept == plain(handle.state_dict())
    handle.detach()

    # The same run on four nodes of one rank each, in DDP.
    torch.manual_seed(0)
    module = nn.Sequential(
        nn.Linear(32, 97), nn.LayerNorm(97), nn.GELU(), nn.Linear(97, 64), nn.Linear(64, 16)
    )
    optimizer = torch.optim.AdamW(module.parameters(), lr=0.01)
    other = gradwire.torch.ddp.attach(
        nn.parallel.DistributedDataParallel(module),
        gradwire.adam(ratio=0.01),
        optimizer=optimizer,
        min_numel=64,
    )
    other.load_state_dict(states)
    again = other.gathered_state_dict(None)
    found["sums"] = [
        shares * sum(float(each["residual"]["0.weight"].double().sum()) for each in those.values())
        for shares, those in ((2, states), (1, again))
    ]
    other.detach()
    return found


class _Scored(nn.Module):
    """Two matrices, one with rows that cannot be halved, whose gradients are what is passed."""

    def __init__(self) -> None:
        super().__init__()
        self.a = nn.Parameter(torch.zeros(33, 40))
        self.c = nn.Parameter(torch.zeros(50, 30))

    def forward(self, a: torch.Tensor, c: torch.Tensor) -> torch.Tensor:
        return (self.a * a).sum() + (self.c * c).sum()


def regimes(rank: int, world_size: int) -> dict[str, Any]:
    """Five epochs in which `a` becomes critical again; saved within the last one, ended by DDP."""
    both, found = mesh(), cast(dict[str, Any], {"critical": [], "norms": [], "sent": []})
    codec, schedule = gradwire.topk(ratio=0.05), Accordion(0.5, 0.05, eta=0.5, interval=1)

    def look(handle: Any) -> None:
        position = about(handle.state_dict())["schedule"]
        found["critical"].append(position["critical"])
        found["norms"].append(position["norms"])

    model = _Scored()
    fully_shard(model, mesh=both["shard"])
    with attached(model, codec, both, schedule=schedule) as handle:
        for epoch, factor in enumerate((1.0, 1.0, 3.0, 3.0, 3.0)):
            handle.epoch(epoch)
            look(handle)
            a = torch.ones(33, 40)
            a[17:] *= factor
            # Only the mean of the node counts: that of 0.5 and 1.5; and only the first node.
            own = (0.5, 1.5, 100.0, 100.0)[rank]
            for _ in range(2):
                model.zero_grad()
                model(own * a, own * torch.ones(50, 30)).backward()
            report = handle.report(reset=True)
            found["sent"].append({each.name: each.bytes_per_step for each in report.parameters})
        (mine,) = handle.state_dict().values()
        found["holds"] = sorted(mine["measured"])
        states = handle.gathered_state_dict(None)
        handle.epoch(5)
        look(handle)
    other = nn.parallel.DistributedDataParallel(_Scored())
    options: dict[str, Any] = {"min_numel": 64, "schedule": schedule, "hierarchy": 2}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", gradwire.torch.ddp.PairingWarning)
        with gradwire.torch.ddp.attach(other, codec, **options) as then:
            then.load_state_dict(states)
            then.epoch(5)
            look(then)
    return found


def refusals(rank: int, world_size: int) -> list[str]:
    """What attach() does not take."""
    both, told = mesh(), []

    def attempt(model: nn.Module, where: Any) -> None:
        try:
            gradwire.torch.fsdp.attach(model, gradwire.topk(0.1), mesh=where)
            told.append("nothing")
        except (TypeError, ValueError) as error:
            told.append(f"{type(error).__name__}: {error}")

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", gradwire.torch.fsdp.PairingWarning)
        attempt(network(), both)
        attempt(sharded(both), both)
        attempt(sharded(both["shard"]), both["shard"])
        attempt(sharded(both["shard"]), "replicate")
        hooked = sharded(both["shard"])
        hooked.set_all_reduce_hook(lambda output: None)
        attempt(hooked, both)
        twice = sharded(both["shard"])
        attempt(twice, both)
        attempt(twice, both)
        twice._gradwire_switch._holder.detach()
        attempt(twice, both["replicate"].get_group())
        twice.set_manual_backward_finalization(True)
        try:
            twice(torch.ones(2, 32)).sum().backward()
        except ValueError as error:
            told.append(f"{type(error).__name__}: {error}")
        twice._gradwire_switch._holder.detach()
    return told
