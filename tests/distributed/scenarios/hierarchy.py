"""Four ranks as two nodes of two."""

import contextlib
import copy
import datetime
import threading
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.nn.parallel import DistributedDataParallel

import gradwire
import gradwire.torch
import gradwire.torch.ddp
from gradwire.torch.backends import Bucket
from gradwire.torch.backends.host import DeviceBucket
from gradwire.torch.engine.step import BufferPool
from gradwire.torch.exchange import hierarchical
from gradwire.torch.transport import ProcessGroupChannel
from tests.deadlines import stretched
from tests.distributed.scenarios.common import (
    SMALL_BUCKETS,
    attached,
    batch,
    fingerprint,
    gradients_of,
    network,
    plain,
    residuals,
    train,
)
from tests.distributed.scenarios.parity import preset

SHAPES = {"a": (33, 40), "turned": (31, 50), "bias": (7,), "c": (1201,), "scalar": ()}
"""With rows that cannot be halved, and a matrix whose rows are not contiguous."""

NODES = {"hierarchy": 2}


class Odd(nn.Module):
    """Parameters whose gradients are exactly the tensors that forward is given."""

    def __init__(self) -> None:
        super().__init__()
        for name, shape in SHAPES.items():
            values = torch.zeros(shape)
            if name == "turned":
                values = torch.zeros(shape[::-1]).T
            self.register_parameter(name, nn.Parameter(values))

    def forward(self, gradients: dict[str, torch.Tensor]) -> torch.Tensor:
        named = dict(self.named_parameters())
        return torch.stack([(named[key] * each).sum() for key, each in gradients.items()]).sum()


def integers(rank: int, step: int) -> dict[str, torch.Tensor]:
    """Small even integers, so that the mean of two is exact."""
    random = np.random.default_rng([7, rank, step])
    return {
        name: torch.from_numpy(np.asarray(2 * random.integers(-12, 13, shape), np.float32))
        for name, shape in SHAPES.items()
    }


def joined(handle: Any) -> dict[int, dict[str, np.ndarray]]:
    """The residuals of every node, put together from all shares."""
    every: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(every, handle.state_dict())
    nodes: dict[int, dict[str, np.ndarray]] = {}
    for node in range(2):
        parts = [every[2 * node + share][f"rank{2 * node + share}"] for share in range(2)]
        nodes[node] = {
            name: np.concatenate([np.ravel(part["residual"][name]) for part in parts])
            for name in parts[0]["residual"]
        }
    return nodes


def against_plain(rank: int, world_size: int) -> dict[str, Any]:
    """Train with plain DDP, and with codecs that send everything or less, by every exchange."""
    reference = DistributedDataParallel(network())
    train(reference, rank, range(6))
    found: dict[str, Any] = {"differences": [], "prints": [], "rest": []}
    for codec in (gradwire.topk(ratio=1.0), gradwire.dense()):
        with attached(network(), codec, options=NODES, bucket_cap_mb=SMALL_BUCKETS) as (model, _):
            train(model, rank, range(6))
            pairs = zip(reference.parameters(), model.parameters(), strict=True)
            found["differences"].append(max(float((a - b).detach().abs().max()) for a, b in pairs))
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("node", "share"))
    groups = (mesh.get_group("share"), mesh.get_group("node"))
    for name, options, hierarchy in (
        ("topk", {"ratio": 0.05}, mesh),
        ("topk", {"ratio": 0.05}, 2),
        ("randomk", {"ratio": 0.05}, groups),
        ("scalecom", {"ratio": 0.05}, 4),
        ("onebit", {}, 2),
        ("topk", {"ratio": 0.05}, 1),
    ):
        made = preset(name, **options)
        with attached(
            network(), made, options={"hierarchy": hierarchy}, bucket_cap_mb=SMALL_BUCKETS
        ) as (model, handle):
            train(model, rank, range(6))
            found["prints"].append(fingerprint(model))
            found["rest"].append(
                sum(float(np.abs(each).sum()) for each in residuals(handle).values())
            )
    return found


_KEEPS = gradwire.memory.Residual()


def against_a_model(rank: int, world_size: int) -> dict[str, Any]:
    """Rounding to bfloat16 treats every entry by itself: compare with torch, bit for bit."""
    codec = gradwire.Codec(
        sparsify=gradwire.sparsify.All(), quantize=gradwire.quantize.BFloat16(), memory=_KEEPS
    )
    left = [{name: torch.zeros(shape) for name, shape in SHAPES.items()} for _ in range(2)]
    equal = True
    options = {**NODES, "min_numel": 64}
    with attached(Odd(), codec, options=options, bucket_cap_mb=SMALL_BUCKETS) as (model, handle):
        for step in range(6):
            model.zero_grad()
            model({name: each / 7 for name, each in integers(rank, step).items()}).backward()
            given = [integers(each, step) for each in range(world_size)]
            for name, parameter in model.module.named_parameters():
                sent = []
                for node in range(2):
                    mean = (given[2 * node][name] / 7 + given[2 * node + 1][name] / 7) / 2
                    total = left[node][name] + mean
                    out = total if mean.numel() < 64 else total.bfloat16().float()
                    left[node][name] = total - out
                    sent.append(out)
                equal = equal and torch.equal(parameter.grad, (sent[0] + sent[1]) / 2)
        nodes = joined(handle)
    kept = all(
        np.array_equal(values, left[node][name].numpy().ravel())
        for node, theirs in nodes.items()
        for name, values in theirs.items()
    )
    return {"gradients": equal, "residuals": kept, "names": sorted(nodes[0])}


def volume(rank: int, world_size: int) -> dict[str, Any]:
    """Count the bytes that this rank gives to channels, per kind of channel."""
    counted = {"inside": 0, "between": 0}

    def spy(kind: str) -> Any:
        original = getattr(ProcessGroupChannel, kind)

        def call(self: ProcessGroupChannel, *tensors: torch.Tensor) -> Any:
            ranks = dist.get_process_group_ranks(self.group)
            if len(ranks) == 2:
                inside = ranks[0] // 2 == ranks[1] // 2
                nbytes = tensors[-1].nbytes // (2 if kind == "all_to_all" else 1)
                counted["inside" if inside else "between"] += nbytes
            return original(self, *tensors)

        return original, call

    with attached(Odd(), gradwire.topk(ratio=0.05), options={**NODES, "min_numel": 64}) as (
        model,
        handle,
    ):
        for step in range(3):
            model(integers(rank, step)).backward()
        handle.report(reset=True)
        originals = {}
        for kind in ("all_to_all", "all_gather"):
            originals[kind], call = spy(kind)
            setattr(ProcessGroupChannel, kind, call)
        try:
            for step in range(3, 5):
                model(integers(rank, step)).backward()
            report = handle.report()
        finally:
            for kind, original in originals.items():
                setattr(ProcessGroupChannel, kind, original)
    return {
        **counted,
        "steps": report.steps,
        "buckets": report.collectives,
        "wire_bytes": report.wire_bytes,
        "node_wire_bytes": report.node_wire_bytes,
        "text": str(report),
    }


def bad_gradients(rank: int, world_size: int, exchange: str | None) -> dict[str, Any]:
    """One rank has infinity in one gradient: all roll back, and go on."""
    codec = preset("topk", ratio=0.1)
    if exchange is not None:
        codec = preset("randomk", ratio=0.1, exchange=exchange, memory="Residual")
    found: dict[str, Any] = {}
    with attached(Odd(), codec, options={**NODES, "min_numel": 64}) as (model, handle):
        model(integers(rank, 0)).backward()
        before = residuals(handle)
        model.zero_grad()
        gradients = integers(rank, 1)
        if rank == 3:
            gradients["c"][1000] = torch.inf
        try:
            model(gradients).backward()
        except gradwire.torch.ddp.GradientError as error:
            found["error"] = (error.name, error.count, error.first, error.rank)
        after = residuals(handle)
        found["kept"] = all(np.array_equal(before[key], after[key]) for key in before)
        found["step"] = handle.step
        model.zero_grad()
        model(integers(rank, 2)).backward()
        found["gradients"] = float(gradients_of(model.module)["c"].sum())
        handle.discard()
        again = residuals(handle)
        found["discarded"] = all(np.array_equal(before[key], again[key]) for key in before)
    scaler = torch.amp.GradScaler("cpu", init_scale=64.0)
    options = {**NODES, "grad_scaler": scaler}
    with attached(network(), codec, options=options, bucket_cap_mb=SMALL_BUCKETS) as (
        model,
        handle,
    ):
        optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
        for step in range(5):
            inputs, targets = batch(rank, step)
            optimizer.zero_grad()
            loss = nn.functional.mse_loss(model(inputs), targets)
            if step == 3 and rank == 1:
                loss = loss * torch.inf
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
        found["scale"] = scaler.get_scale()
        found["steps"] = handle.step
        found["print"] = fingerprint(model)
    return found


def marks(rank: int, world_size: int) -> list[bool]:
    """Tell of each mark of memory whether it is taken in the receiving thread's stream."""
    inside = threading.local()
    found: list[bool] = []

    @contextlib.contextmanager
    def receiving(bucket: Bucket) -> Iterator[None]:
        inside.depth = getattr(inside, "depth", 0) + 1
        yield
        inside.depth -= 1

    def used(bucket: Bucket, *tensors: torch.Tensor) -> None:
        found.append(getattr(inside, "depth", 0) > 0)

    with contextlib.ExitStack() as stack:
        for kind in (Bucket, DeviceBucket):
            stack.enter_context(mock.patch.object(kind, "receiving", receiving))
            stack.enter_context(mock.patch.object(kind, "used", used))
        for memory in (_KEEPS, gradwire.memory.Residual(low_memory=True)):
            codec = gradwire.topk(0.1, memory=memory)
            with attached(Odd(), codec, options={**NODES, "min_numel": 64}) as (model, _):
                model(integers(rank, 0)).backward()
    return found


def no_memory(rank: int, world_size: int) -> dict[str, Any]:
    """After a good step rank 1 lacks memory in one place: what each rank sees and keeps."""
    found: dict[str, Any] = {}

    def trouble(*arguments: Any, **options: Any) -> Any:
        raise MemoryError("no memory for a share")

    places = [
        ("take", (BufferPool,)),
        ("pack", (Bucket, DeviceBucket)),
        ("divide", (hierarchical,)),
    ]
    codecs = {
        "gathered": gradwire.topk(0.1),
        "summed": preset("randomk", ratio=0.1, exchange="AllReduce", memory="Residual"),
    }
    for name, codec in codecs.items():
        for act, owners in places:
            with attached(Odd(), codec, options={**NODES, "min_numel": 64}) as (model, handle):
                model(integers(rank, 0)).backward()
                before, said = residuals(handle), ""
                with contextlib.ExitStack() as stack:
                    for owner in owners if rank == 1 else ():
                        stack.enter_context(mock.patch.object(owner, act, trouble))
                    try:
                        model(integers(rank, 1)).backward()
                    except gradwire.torch.ddp.ExchangeError as error:
                        said = str(error)
                after = residuals(handle)
                kept = all(np.array_equal(before[key], after[key]) for key in before)
                found[f"{name}, {act}"] = said, kept
    return found


def resume(rank: int, world_size: int, folder: str) -> dict[str, Any]:
    """Train 8 steps; or 5, save, start again, and 3. Then load with other nodes."""
    found: dict[str, Any] = {}

    def make(seed: int = 0, options: Any = NODES) -> Any:
        module = network(seed)
        optimizer = torch.optim.AdamW(module.parameters(), lr=0.01)
        given = {"min_numel": 64, "optimizer": optimizer, **options}
        return attached(module, gradwire.adam(ratio=0.05), options=given), optimizer

    context, optimizer = make()
    with context as (model, handle):
        train(model, rank, range(5), optimizer=optimizer)
        saved = {
            "model": {key: each.clone() for key, each in model.module.state_dict().items()},
            "optimizer": copy.deepcopy(optimizer.state_dict()),
            "gradwire": handle.state_dict(),
        }
        torch.save(saved, Path(folder) / f"rank{rank}.pt")
        everything = handle.gathered_state_dict(None)
        train(model, rank, range(5, 8), optimizer=optimizer)
        whole = fingerprint(model), plain(handle.state_dict())
    for gathered in (False, True):
        loaded = torch.load(Path(folder) / f"rank{rank}.pt", weights_only=True)
        state = everything if gathered else loaded["gradwire"]
        context, optimizer = make(seed=5)
        with context as (model, handle):
            model.module.load_state_dict(loaded["model"])
            optimizer.load_state_dict(loaded["optimizer"])
            handle.load_state_dict(state)
            train(model, rank, range(5, 8), optimizer=optimizer)
            parts = fingerprint(model), plain(handle.state_dict())
        found.setdefault("equal", []).append(parts == whole)
    found["print"] = whole[0]
    sums = {}
    for shares in (1, 4):
        context, _ = make(options={"hierarchy": shares})
        with context as (_, handle):
            handle.load_state_dict(everything)
            again = handle.gathered_state_dict(None)
            sums[shares] = _masses(again, shares)
    found["masses"] = [_masses(everything, 2), sums[1], sums[4]]
    context, _ = make()
    with context as (_, handle):
        try:
            handle.load_state_dict({"rank0": everything["rank0"]})
        except ValueError as error:
            found["refused"] = str(error)
    return found


def _masses(states: dict[str, Any], shares: int) -> dict[str, float]:
    """What all ranks are still to send, by name."""
    names = states["rank0"]["residual"]
    return {
        name: shares * sum(float(each["residual"][name].double().sum()) for each in states.values())
        for name in names
    }


def refusals(rank: int, world_size: int) -> list[str]:
    """What is no hierarchy, or not one for this model."""
    told = []

    def attempt(hierarchy: Any, module: nn.Module | None = None) -> None:
        model = DistributedDataParallel(module or network())
        try:
            gradwire.torch.ddp.attach(
                model,
                gradwire.topk(0.1),
                hierarchy=hierarchy,
                timeout=datetime.timedelta(seconds=stretched(9)),
            ).detach()
            told.append("nothing")
        except (TypeError, ValueError) as error:
            told.append(f"{type(error).__name__}: {error}")

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        attempt(3)
        attempt("rack")
        attempt("node")
        attempt(init_device_mesh("cpu", (4,)))
        attempt(True)
        attempt(2 if rank else 4)
        attempt(2, nn.EmbeddingBag(64, 32, sparse=True))
        attempt(2)
    return told
