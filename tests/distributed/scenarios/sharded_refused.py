"""What FSDP2 models, and passes of them, are refused."""

import warnings
from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.fsdp._fully_shard._fsdp_common import FSDPMeshInfo, ShardPlacementResult
from torch.distributed.tensor.parallel import ColwiseParallel, parallelize_module

import gradwire
import gradwire.torch.fsdp
from tests.distributed.scenarios.common import batch
from tests.distributed.scenarios.sharded import attached, distance, mesh, sharded, steps


def models(rank: int, world_size: int) -> dict[str, str]:
    """Models and meshes that attach() does not take, by what is wrong with them."""
    both, told = mesh(), {}
    codec = gradwire.topk(0.1)

    def attempt(what: str, model: nn.Module, over: Any = both, codec: Any = codec) -> None:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", gradwire.torch.fsdp.PairingWarning)
            try:
                gradwire.torch.fsdp.attach(model, codec, mesh=over).detach()
                told[what] = "nothing"
            except (TypeError, ValueError) as error:
                told[what] = f"{type(error).__name__}: {error}"

    def layers() -> nn.Sequential:
        return nn.Sequential(nn.Linear(32, 64), nn.Linear(64, 16))

    twofold = layers()
    fully_shard(twofold[0], mesh=both["replicate"])
    fully_shard(twofold, mesh=both["shard"])
    attempt("different meshes", twofold)

    several = layers()
    other = FSDPMeshInfo(both["replicate"], shard_mesh_dim=0)
    usual = FSDPMeshInfo(both["shard"], shard_mesh_dim=0)
    fully_shard(
        several,
        mesh=both["shard"],
        shard_placement_fn=lambda each: ShardPlacementResult(
            None, other if each is several[0].weight else usual
        ),
    )
    attempt("several groups", several)

    parallel = layers()
    parallelize_module(parallel, both["replicate"], {"0": ColwiseParallel()})
    fully_shard(parallel, mesh=both["shard"])
    attempt("tensor parallel", parallel)

    with torch.device("meta"):
        empty = layers()
    fully_shard(empty, mesh=both["shard"])
    attempt("meta", empty)

    frozen = layers().requires_grad_(False)
    fully_shard(frozen, mesh=both["shard"])
    attempt("nothing to train", frozen)

    attempt("three dimensions", sharded(both["shard"]), init_device_mesh("cpu", (2, 2, 1)))
    attempt("other nodes", sharded(both["shard"]), DeviceMesh("cpu", [[0, 2], [1, 3]]))
    attempt("a sound one", sharded(both["shard"]))
    return told


def twice(rank: int, world_size: int) -> float:
    """Call a module twice in a forward pass, with another one in between: compare with HSDP."""
    both = mesh()

    def make(over: DeviceMesh) -> nn.Module:
        torch.manual_seed(0)
        again, between = nn.Linear(32, 32), nn.Linear(32, 32)
        for each in (again, between):
            fully_shard(each, mesh=over)
        model = nn.Sequential(nn.Linear(32, 32), again, between, again, nn.Linear(32, 16))
        fully_shard(model, mesh=over)
        return model

    reference, model = make(both), make(both["shard"])
    steps(reference, rank, range(2))
    with attached(model, gradwire.topk(ratio=1.0), both):
        steps(model, rank, range(2))
    return distance(reference, model)


def passes(rank: int, world_size: int) -> dict[str, str]:
    """Backward passes that cannot be exchanged; each time the next one can."""
    both, told = mesh(), {}

    def attempt(what: str, model: Any, act: Callable[[], Any]) -> None:
        try:
            act()
            told[what] = "nothing"
        except ValueError as error:
            told[what] = str(error)
        model.reset_iter_state()
        model.zero_grad()

    model = sharded(both["shard"])
    inputs, targets = batch(rank, 0)

    def go() -> None:
        nn.functional.mse_loss(model(inputs), targets).backward()

    with attached(model, gradwire.topk(0.1), both) as handle:
        steps(model, rank, range(1))
        attempt("regroup", model, lambda: handle.regroup(both["replicate"].get_group()))
        hook = model[3].weight.register_post_accumulate_grad_hook(lambda each: None)
        attempt("a hook of a parameter", model, go)
        hook.remove()
        steps(model, rank, range(1, 2))
        told["steps"] = str(handle.step)

    late = sharded(both["shard"])
    for each in late[0].parameters():
        each.requires_grad_(False)
    with attached(late, gradwire.topk(0.1), both):
        for each in late[0].parameters():
            each.requires_grad_(True)
        attempt("frozen at attach", late, lambda: late(inputs).sum().backward())
    return told
