"""Checkpoints: resume, other numbers of ranks, the wrong file."""

from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.nn.parallel import DistributedDataParallel

import gradwire
import gradwire.torch.ddp
from gradwire.memory import Residual
from gradwire.memory.residual import StorageDtype
from gradwire.torch.checkpoint.format import Policy
from gradwire.torch.ddp import Handle
from tests.distributed.scenarios.common import (
    SMALL_BUCKETS,
    Given,
    about,
    attached,
    changed,
    fingerprint,
    integers,
    network,
    residuals,
    train,
)
from tests.distributed.scenarios.parity import preset


def resume(
    rank: int, world_size: int, codec: tuple[str, dict[str, Any]], folder: str, lr: float = 0.5
) -> dict[str, Any]:
    """Train 9 steps; or 5, save, start again from the file, and 4."""
    name, options = codec
    made = preset(name, **options)
    with attached(network(), made, bucket_cap_mb=SMALL_BUCKETS) as (model, handle):
        train(model, rank, range(9), lr=lr)
        whole = (fingerprint(model), residuals(handle), handle.step)

    path = Path(folder) / f"rank{rank}.pt"
    with attached(network(), made, bucket_cap_mb=SMALL_BUCKETS) as (model, handle):
        train(model, rank, range(5), lr=lr)
        torch.save({"model": model.module.state_dict(), "gradwire": handle.state_dict()}, path)

    saved = torch.load(path, weights_only=True)
    module = network(seed=99)
    module.load_state_dict(saved["model"])
    with attached(module, made, bucket_cap_mb=SMALL_BUCKETS) as (model, handle):
        handle.load_state_dict(saved["gradwire"])
        train(model, rank, range(5, 9), lr=lr)
        parts = (fingerprint(model), residuals(handle), handle.step)
    return {
        "parameters": whole[0] == parts[0],
        "residuals": all(whole[1][key].tobytes() == parts[1][key].tobytes() for key in whole[1]),
        "steps": (whole[2], parts[2]),
        "fingerprint": parts[0],
        "left": sum(float(np.abs(each).sum()) for each in whole[1].values()),
    }


def resume_before_a_burst(rank: int, world_size: int) -> dict[str, Any]:
    """Resume right before a step whose frames outgrow their limits, and have to be trimmed."""
    codec = gradwire.threshold(20.0)

    def step_on(model: DistributedDataParallel, handle: Handle, step: int) -> int:
        gradients = integers(10, rank, step)
        if step == 4:
            gradients = {name: 4 * each for name, each in gradients.items()}
        model.zero_grad()
        model(gradients).backward()
        return sum(each.trimmed for each in handle.report(reset=True).parameters)

    with attached(Given(), codec) as (model, handle):
        for step in range(4):
            step_on(model, handle, step)
        saved = handle.state_dict()
        trimmed = step_on(model, handle, 4)
        whole = residuals(handle)
    with attached(Given(), codec) as (model, handle):
        handle.load_state_dict(saved)
        step_on(model, handle, 4)
        parts = residuals(handle)
    return {
        "trimmed": trimmed,
        "same": all(whole[name].tobytes() == parts[name].tobytes() for name in whole),
    }


def save(
    rank: int, world_size: int, folder: str, dtype: StorageDtype = "float32"
) -> dict[str, np.ndarray]:
    """Leave something in the residuals, and a file for each rank."""
    with attached(Given(), gradwire.topk(ratio=0.05, memory=Residual(dtype=dtype))) as (
        model,
        handle,
    ):
        for step in range(3):
            model.zero_grad()
            model(integers(9, rank, step)).backward()
        torch.save(handle.state_dict(), Path(folder) / f"rank{rank}.pt")
        return residuals(handle)


def load(
    rank: int,
    world_size: int,
    folder: str,
    old_size: int,
    policy: Policy,
    only_own: bool = False,
    dtype: StorageDtype = "float32",
) -> dict[str, Any]:
    """Load the files of another number of ranks; then train a step to see that it goes on."""
    files = [Path(folder) / f"rank{old}.pt" for old in range(old_size)]
    saved: Any = [torch.load(file, weights_only=True) for file in files]
    if only_own:
        saved = saved[rank] if rank < old_size else None
    with attached(Given(), gradwire.topk(ratio=0.05, memory=Residual(dtype=dtype))) as (
        model,
        handle,
    ):
        handle.load_state_dict(saved, policy=policy)
        left, step = residuals(handle), handle.step
        ((_, again),) = handle.state_dict().items()
        kinds = {str(each.dtype) for each in again["residual"].values()}
        model(integers(9, rank, 3)).backward()
        return {"left": left, "step": step, "after": handle.step, "dtypes": kinds}


def save_momentum(rank: int, world_size: int, folder: str) -> dict[str, np.ndarray]:
    """Leave something in the momentum, and a file for each rank."""
    with attached(Given(), gradwire.dgc(ratio=0.05)) as (model, handle):
        for step in range(3):
            model.zero_grad()
            model(integers(9, rank, step)).backward()
        saved = handle.state_dict()
        torch.save(saved, Path(folder) / f"rank{rank}.pt")
        return _momentum(saved)


def load_momentum(rank: int, world_size: int, folder: str, old_size: int) -> dict[str, np.ndarray]:
    """Load the files of another number of ranks."""
    files = [Path(folder) / f"rank{old}.pt" for old in range(old_size)]
    with attached(Given(), gradwire.dgc(ratio=0.05)) as (_, handle):
        handle.load_state_dict([torch.load(file, weights_only=True) for file in files])
        return _momentum(handle.state_dict())


def _momentum(saved: dict[str, Any]) -> dict[str, np.ndarray]:
    (mine,) = saved.values()
    return {name: each.numpy().ravel() for name, each in mine["momentum"].items()}


def wrong_files(rank: int, world_size: int, folder: str) -> dict[str, str]:
    """What load_state_dict refuses, on every rank, and leaves everything as it was."""
    own = torch.load(Path(folder) / f"rank{rank}.pt", weights_only=True)
    first = torch.load(Path(folder) / "rank0.pt", weights_only=True)
    told = about(own)
    later = changed(own, step=told["step"] + rank)
    of_three = changed(own, world_size=3)
    pruned = changed(own, parameters={"a": told["parameters"]["a"]})
    for kind in ("residual", "momentum", "measured"):
        (only,) = pruned.values()
        only[kind] = {name: each for name, each in only[kind].items() if name == "a"}
    found = {}
    with attached(Given(), gradwire.topk(ratio=0.05)) as (model, handle):
        model(integers(9, rank, 0)).backward()
        before = residuals(handle)
        for name, saved in {
            "rank 0's on every rank": first,
            "different steps": later,
            "other world, own only": of_three,
            "other model": pruned,
            "not a state_dict": {"a": 1},
            "nothing": None,
        }.items():
            try:
                handle.load_state_dict(saved)
            except ValueError as error:
                found[name] = str(error)
        after = residuals(handle)
        found["untouched"] = str(
            all(before[name].tobytes() == after[name].tobytes() for name in before)
        )
    with attached(Given(), gradwire.sidco(ratio=0.05)) as (_, handle):
        try:
            handle.load_state_dict(own)
        except ValueError as error:
            found["other codec"] = str(error)
    return found


def report(rank: int, world_size: int) -> dict[str, Any]:
    """What the report says after some steps, and after a reset."""
    with attached(network(), gradwire.topk(ratio=0.05), bucket_cap_mb=SMALL_BUCKETS) as (
        model,
        handle,
    ):
        train(model, rank, range(6))
        first = handle.report(reset=True)
        left = residuals(handle)
        train(model, rank, range(6, 8))
        second = handle.report()
        norm = float(np.sqrt(sum((each.astype(np.float64) ** 2).sum() for each in left.values())))
        sizes = {name: each.numel() for name, each in model.module.named_parameters()}
        return {
            "text": str(first),
            "report": first,
            "json": first.to_json(),
            "metrics": handle.metrics(),
            "norm": norm,
            "second": second,
            "sizes": sizes,
            "steps": handle.step,
            "repr": repr(handle),
        }


def copies(rank: int, world_size: int) -> bool:
    """A pickled copy of the wrapped module is free of threads and process groups."""
    import copy
    import pickle

    model = DistributedDataParallel(network())
    handle = gradwire.torch.ddp.attach(model, gradwire.topk(ratio=0.05))
    train(model, rank, range(2))
    again = pickle.loads(pickle.dumps(model.module))
    deep = copy.deepcopy(model.module)
    handle.detach()
    return fingerprint(again) == fingerprint(model.module) == fingerprint(deep)


def compiled(rank: int, world_size: int) -> tuple[set[str], set[str]]:
    """Names of what is saved of a model, plain and with compiled modules around and in it."""
    codec = gradwire.topk(ratio=0.05)
    module = network()
    with attached(module, codec) as (_, handle):
        plain = set(residuals(handle))
    inner: Any = torch.compile(module[0], backend="eager")
    module[0] = inner
    outer: Any = torch.compile(module, backend="eager")
    with attached(outer, codec) as (_, handle):
        return plain, set(residuals(handle))
