"""Exchanges that add values up on the wire, and the mean over senders."""

import dataclasses
import time
import warnings
from pathlib import Path
from typing import Any, cast
from unittest import mock

import numpy as np
import torch
from torch.nn.parallel import DistributedDataParallel

import gradwire
from gradwire.exchange import (
    AllGather,
    AllReduce,
    ByRanks,
    LeaderIndices,
    QuantizedAllReduce,
    ReduceScatter,
)
from gradwire.torch.ddp import ExchangeError, GradientError
from gradwire.torch.engine.pipeline import ExchangePipeline
from gradwire.torch.engine.step import BufferPool
from tests.distributed.scenarios.common import (
    SHAPES,
    SMALL_BUCKETS,
    Given,
    attached,
    fingerprint,
    gradients_of,
    integers,
    network,
    residuals,
    train,
)


def exchanged(name: str, quantize: str = "Float32", ratio: float = 0.05) -> Any:
    """Build a codec by the name of its exchange."""
    if name == "quantized":
        return gradwire.onebit(exchange=QuantizedAllReduce())
    if name == "all_reduce":
        codec = gradwire.dense(memory=gradwire.memory.Residual(), exchange=AllReduce())
    elif name == "default":
        codec = gradwire.topk(ratio=ratio)
    elif name == "senders":
        codec = gradwire.Codec(
            sparsify=gradwire.sparsify.TopK(ratio=ratio), exchange=AllGather(mean="senders")
        )
    else:
        exchange = ReduceScatter() if name == "scattered" else LeaderIndices()
        codec = gradwire.Codec(sparsify=gradwire.sparsify.TopK(ratio=ratio), exchange=exchange)
    options = {"scaled": False} if quantize == "Float16" else {}
    return dataclasses.replace(codec, quantize=getattr(gradwire.quantize, quantize)(**options))


def leader_steps(
    rank: int, world_size: int, steps: int, beta: float | None = None
) -> list[dict[str, Any]]:
    """Return for each step what each parameter's average was made of, and the residuals."""
    found = []
    codec = exchanged("leader")
    if beta is not None:
        codec = dataclasses.replace(codec, memory=gradwire.memory.LowPass(beta))
    with attached(Given(), codec, bucket_cap_mb=SMALL_BUCKETS) as (model, handle):
        for step in range(steps):
            before = residuals(handle)
            gradients = integers(11, rank, step)
            model.zero_grad()
            model(gradients).backward()
            found.append(
                {
                    "input": {
                        name: before[name] + gradients[name].numpy().ravel() for name in before
                    },
                    "average": {name: gradients_of(model.module)[name] for name in before},
                    "before": before,
                    "gradient": {name: gradients[name].numpy().ravel() for name in before},
                    "after": residuals(handle),
                    "turns": {name: handle._parameters[name].turn for name in before},
                }
            )
    return found


def senders(rank: int, world_size: int) -> list[dict[str, np.ndarray]]:
    """Two entries a rank, one of them the same on all: return the averages."""
    found = []
    for codec in (
        gradwire.topk(k=2),
        gradwire.Codec(sparsify=gradwire.sparsify.TopK(k=2), exchange=AllGather(mean="senders")),
        gradwire.dense(exchange=AllGather(mean="senders")),
    ):
        with attached(Given({"b": torch.float16}), codec) as (model, _):
            gradients = {name: torch.zeros(shape) for name, shape in SHAPES.items()}
            for name in ("a", "b", "c", "bias"):
                gradients[name].view(-1)[7] = 6.0 * (rank + 1)
                gradients[name].view(-1)[9 + rank] = 12.0
            model(gradients).backward()
            found.append(gradients_of(model.module))
    return found


def wire_bytes(
    rank: int, world_size: int, exchange: str, quantize: str, ratio: float, steps: int
) -> dict[str, float]:
    """Count the bytes that the kernel has taken from this process: the real ones on the wire."""

    class Large(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a = torch.nn.Parameter(torch.zeros(300, 400))

        def forward(self, gradient: torch.Tensor) -> torch.Tensor:
            return (self.a * gradient).sum()

    def written() -> int:
        fields = dict(line.split(": ") for line in Path("/proc/self/io").read_text().splitlines())
        return int(fields["wchar"])

    random = np.random.default_rng(rank)
    codec = gradwire.topk(ratio=ratio)
    if exchange == "leader":
        codec = exchanged("leader", quantize, ratio=ratio)
    if exchange == "scalecom":
        codec = gradwire.scalecom(ratio, quantize=getattr(gradwire.quantize, quantize)())
    with attached(Large(), codec) as (model, handle):

        def one() -> None:
            model.zero_grad()
            model(torch.from_numpy(random.standard_normal((300, 400), np.float32))).backward()

        for _ in range(24):  # limits settle
            one()
        handle.report(reset=True)
        torch.distributed.barrier()
        time.sleep(0.1)
        start = written()
        for _ in range(steps):
            one()
        time.sleep(0.1)
        counted = (written() - start) / steps
        said = handle.report().wire_bytes
        torch.distributed.barrier()
        return {"counted": counted, "said": said}


def zero_everywhere(rank: int, world_size: int, exchange: str) -> dict[str, bool]:
    """A parameter that nobody used keeps its residual; of one used somewhere all flow."""
    with attached(
        Given(), exchanged(exchange), bucket_cap_mb=SMALL_BUCKETS, find_unused_parameters=True
    ) as (model, handle):
        left = []
        for step in range(4):
            names = set(SHAPES)
            if step == 1 or (step == 2 and rank == 0):
                names -= {"a"}
            model.zero_grad()
            model(integers(3, rank, step, sorted(names))).backward()
            left.append(residuals(handle)["a"].tobytes())
        return {"kept": left[0] == left[1], "flowed": left[1] != left[2]}


def encoding_fails(rank: int, world_size: int, exchange: str, who: int) -> dict[str, str]:
    """Something unforeseen on one rank, with others waiting for what it has to send."""
    model = DistributedDataParallel(Given(), bucket_cap_mb=SMALL_BUCKETS)
    handle = gradwire.torch.ddp.attach(model, exchanged(exchange))
    found = {}
    for step in range(2):
        model(integers(1, rank, step)).backward()
    if rank == who:
        handle._parameters["a"].state = cast(Any, None)
    for when in ("first", "later"):
        try:
            model(integers(1, rank, 2)).backward()
        except ExchangeError as caught:
            found[when] = str(caught)
    found["kept"] = type(handle.error).__name__
    handle.detach()
    return found


def no_memory(rank: int, world_size: int, slow: bool = False) -> dict[str, Any]:
    """After two good steps rank 1 gets no memory for messages: what each rank sees and keeps.

    If it is slow, it has heard of the failure of a bucket before it starts the next, which the
    other rank waits for then, until rank 1 has left.
    """
    found: dict[str, Any] = {}
    launch = ExchangePipeline._launch

    def late(pipeline: ExchangePipeline, task: Any) -> Any:
        time.sleep(0.2)
        return launch(pipeline, task)

    def trouble(*arguments: Any) -> Any:
        raise MemoryError("no memory for messages")

    for name, codec in {
        "gather": gradwire.topk(ratio=0.05),
        "leader": exchanged("leader"),
        "all_reduce": exchanged("all_reduce"),
    }.items():
        with attached(Given(), codec, bucket_cap_mb=SMALL_BUCKETS) as (model, handle):
            for step in range(2):
                model.zero_grad()
                model(integers(1, rank, step)).backward()
            before, said = residuals(handle), ""
            take = trouble if rank == 1 else BufferPool.take
            start = late if slow and rank == 1 else launch
            with (
                mock.patch.object(BufferPool, "take", take),
                mock.patch.object(ExchangePipeline, "_launch", start),
            ):
                try:
                    model(integers(1, rank, 2)).backward()
                except ExchangeError as error:
                    said = str(error)
            after = residuals(handle)
            kept = all(np.array_equal(before[key], after[key]) for key in before)
            found[name] = said, kept
    return found


def float16_overflow(rank: int, world_size: int) -> dict[str, Any]:
    """Values that fit into float16, and a sum that does not."""
    codec = exchanged("all_reduce", "Float16")
    with attached(Given(), codec) as (model, handle):
        model(integers(1, rank, 0)).backward()
        before = residuals(handle)
        gradients = integers(1, rank, 1)
        gradients["a"][0, 3] = 60000.0
        model.zero_grad()
        try:
            model(gradients).backward()
            text = ""
        except GradientError as error:
            text = str(error)
        after = residuals(handle)
        model.zero_grad()
        model(integers(1, rank, 2)).backward()
        return {
            "text": text,
            "rolled_back": all(before[key].tobytes() == after[key].tobytes() for key in before),
        }


def in_step(rank: int, world_size: int) -> str:
    """Rank 1 counts one bucket more: the sum of what the ranks say shows it on all of them."""
    model = DistributedDataParallel(Given())
    handle = gradwire.torch.ddp.attach(model, exchanged("all_reduce"))
    model(integers(1, rank, 0)).backward()
    handle._pipeline.drain()
    if rank == 1:
        handle._pipeline._sequence += 1
    try:
        model(integers(1, rank, 1)).backward()
    except ExchangeError as error:
        return str(error)
    return ""


def global_numbers() -> tuple[bytes, str]:
    """The random state that belongs to the user."""
    state: Any = np.random.get_state()  # noqa: NPY002  # just this one must not be touched
    return torch.random.get_rng_state().numpy().tobytes(), repr(list(state))


def drawn(rank: int, world_size: int, block: bool) -> dict[str, Any]:
    """Random-k from a shared seed: every rank's draws, what came out, and the user's numbers."""
    random = gradwire.sparsify.RandomK(ratio=0.1, block=block, seed=5)
    codec = gradwire.Codec(sparsify=random, exchange=AllReduce())
    torch.manual_seed(3)
    np.random.seed(3)  # noqa: NPY002
    before = global_numbers()
    sent, averages, means = [], [], []
    with attached(Given(), codec, bucket_cap_mb=SMALL_BUCKETS) as (model, handle):
        for step in range(3):
            inputs = residuals(handle)["a"] + integers(5, rank, step)["a"].numpy().ravel()
            model.zero_grad()
            model(integers(5, rank, step)).backward()
            sent.append(np.flatnonzero(inputs != residuals(handle)["a"]))
            averages.append(gradients_of(model.module)["a"])
            every: list[Any] = [None] * world_size
            torch.distributed.all_gather_object(every, inputs)
            means.append(np.mean(every, axis=0))
        size = handle.report().parameters[0].bytes_per_step
    after = global_numbers()
    return {
        "sent": sent,
        "averages": averages,
        "means": means,
        "bytes": size,
        "untouched": before == after,
    }


def drawn_after_growth(rank: int, world_size: int, folder: str, save: bool) -> list[str]:
    """Go on with another number of ranks, each old one with its own residuals."""
    codec = gradwire.Codec(sparsify=gradwire.sparsify.RandomK(ratio=0.1), exchange=AllReduce())
    path = Path(folder) / f"rank{rank}.pt"
    with attached(Given(), codec) as (model, handle):
        if not save:
            own = torch.load(path, weights_only=True) if path.exists() else None
            handle.load_state_dict(own, policy="keep")
        for step in range(2):
            model.zero_grad()
            model(integers(5, rank, step)).backward()
        if save:
            torch.save(handle.state_dict(), path)
        return [str(each.state.step) for each in handle._parameters.values() if each.state]


def by_ranks(rank: int, world_size: int) -> dict[str, Any]:
    """Codecs that leave the exchange to the number of ranks, beside those that say it."""
    selects, sends_all = gradwire.topk(ratio=0.05), gradwire.onebit()
    found: dict[str, Any] = {"same": [], "exchanges": []}
    saved = {}
    for codec in (selects, sends_all):
        of = codec.sparsify, codec.quantize, codec.memory
        told = dataclasses.replace(codec, exchange=ByRanks().for_ranks(world_size, *of))
        runs = []
        for each in (codec, told, dataclasses.replace(codec, exchange=AllGather())):
            with attached(network(), each, bucket_cap_mb=SMALL_BUCKETS) as (model, handle):
                train(model, rank, range(4))
                report = handle.report()
                runs.append((fingerprint(model), report.collectives, report.wire_bytes))
                found["exchanges"].append(report.exchange)
                saved[each.exchange] = handle.state_dict(), residuals(handle)
        found["same"].append(runs[0] == runs[1])
    # A checkpoint of either goes on with the other.
    for one, other in ((ByRanks(), AllGather()), (AllGather(), ByRanks())):
        state, held = saved[one]
        codec = dataclasses.replace(sends_all, exchange=other)
        with attached(network(), codec, bucket_cap_mb=SMALL_BUCKETS) as (model, handle):
            handle.load_state_dict(state)
            left = residuals(handle)
            found["same"].append(all(np.array_equal(held[name], left[name]) for name in held))
            train(model, rank, range(4, 6))
            found["replica"] = fingerprint(model)
    # Codecs of both kinds share a bucket.
    first = []
    codecs: list[Any] = [selects, sends_all, {"a": selects, "*": sends_all}]
    for each in codecs:
        with attached(Given(), each) as (model, handle):
            model(integers(3, rank, 0)).backward()
            first.append(gradients_of(model.module))
            found["both"] = handle.report().exchange
    expected = {**first[1], "a": first[0]["a"]}
    found["same"].append(all(np.array_equal(expected[name], first[2][name]) for name in expected))
    return found


def where(rank: int, world_size: int) -> dict[str, str]:
    """Which exchange the default is if four ranks are many: as they are, and with what else."""
    calls: dict[str, tuple[Any, dict[str, Any]]] = {
        "ranks": (gradwire.topk(0.05), {}),
        "nodes": (gradwire.topk(0.05), {"hierarchy": 2}),
        "one of two": ({"0.*": gradwire.topk(0.05), "*": gradwire.float8(block=None)}, {}),
        "told": (gradwire.onebit(exchange=AllGather()), {}),
    }
    found = {}
    with mock.patch.object(ByRanks, "MANY", world_size):
        for name, (codec, options) in calls.items():
            with attached(network(), codec, options=options) as (model, handle):
                train(model, rank, range(1))
                found[name] = handle.report().exchange
    return found


def warned(rank: int, world_size: int) -> list[list[str]]:
    """What `attach` warns of: codecs that suit few ranks, and one that suits none."""
    found = []
    for codec in (gradwire.topk(0.01), gradwire.onebit(), gradwire.float8(), gradwire.dense()):
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            with attached(network(), codec):
                pass
        found.append([str(each.message) for each in caught if each.category is RuntimeWarning])
    return found
