"""Buckets that are compared with the core, and faults that are planted in what is not the core."""

import contextlib
import threading
import warnings
from collections.abc import Callable, Iterator
from typing import Any
from unittest.mock import patch

import torch

import gradwire
import gradwire.torch
from gradwire import exchange, quantize, sparsify
from gradwire.torch import backends
from gradwire.torch.backends import cpu
from gradwire.torch.backends.cuda import encoding, merging, splitting
from gradwire.torch.exchange import verification
from tests.distributed.scenarios.common import (
    SMALL_BUCKETS,
    attached,
    batch,
    bits,
    fingerprint,
    network,
    plain,
)
from tests.distributed.scenarios.sharded import attached as fsdp_attached
from tests.distributed.scenarios.sharded import full, mesh
from tests.distributed.scenarios.sharded import sharded as shards

FAULTY = 4
"""The first step in which a fault shows."""
STEPS = 8

CODECS: dict[str, Callable[[], gradwire.Codec]] = {
    "gather": lambda: gradwire.topk(ratio=0.1),
    "halves": lambda: gradwire.topk(ratio=0.1, memory=gradwire.memory.Residual(dtype="bfloat16")),
    "one buffer": lambda: gradwire.topk(
        ratio=0.1, memory=gradwire.memory.Residual(low_memory=True)
    ),
    "random": lambda: gradwire.qsgd(),
    "dense": lambda: gradwire.Codec(
        sparsify=sparsify.All(), quantize=quantize.BFloat16(), exchange=exchange.AllReduce()
    ),
    "drawn": lambda: gradwire.randomk(ratio=0.2),
    "leader": lambda: gradwire.topk(ratio=0.1, exchange=exchange.LeaderIndices()),
    "owners": lambda: gradwire.topk(ratio=0.1, exchange=exchange.ReduceScatter()),
    "owners of all": lambda: gradwire.float8(exchange=exchange.QuantizedAllReduce()),
}


class Fault:
    """What a rank does wrong while it is on, but never at the core's scalar level."""

    def __init__(self, kind: str) -> None:
        self.kind = kind
        self.on = False
        self.done = 0  # how often
        self._right = threading.local()
        self._at_scalar_level = verification.at_scalar_level

    @property
    def due(self) -> bool:
        """Whether to go wrong now."""
        due = self.on and not getattr(self._right, "level", False)
        self.done += due
        return due

    def _scalar(self, act: Callable[..., Any], *given: Any) -> Any:
        self._right.level = True
        try:
            return self._at_scalar_level(act, *given)
        finally:
            self._right.level = False

    @contextlib.contextmanager
    def planted(self) -> Iterator[None]:
        """Plant it in what encodes and decodes buckets here."""
        kernels = backends.backend_for(torch.zeros(1)).name == "cuda"
        with contextlib.ExitStack() as stack:
            if kernels:
                encode, decode = self._encode_by_kernels(), self._decode_by_kernels()
                stack.enter_context(patch.object(encoding, "start", encode))
                stack.enter_context(patch.object(encoding, "decode", decode))
                stack.enter_context(patch.object(splitting, "split", self._split(splitting.split)))
                stack.enter_context(patch.object(merging, "merge", self._merge(merging.merge)))
            else:
                stack.enter_context(patch.object(verification, "at_scalar_level", self._scalar))
                stack.enter_context(patch.object(cpu.Bucket, "encode", self._encode()))
                stack.enter_context(patch.object(cpu.Bucket, "average", self._average()))
                stack.enter_context(patch.object(cpu.Bucket, "average_sums", self._average_sums()))
                split, merge = self._split(cpu.Bucket.split), self._merge(cpu.Bucket.merge)
                stack.enter_context(patch.object(cpu.Bucket, "split", split))
                stack.enter_context(patch.object(cpu.Bucket, "merge", merge))
            yield

    def _encode(self) -> Any:
        real = cpu.Bucket.encode

        def encode(
            bucket: Any, codecs: Any, states: Any, *given: Any, **options: Any
        ) -> tuple[Any, Any]:
            wrong = self.kind in ("frame", "scale", "state") and self.due
            if wrong and self.kind == "scale":
                given = (*given[:-1], 2.0 * given[-1])
            found = real(bucket, codecs, states, *given, **options)
            if wrong and self.kind == "frame":
                given[-2][int(found[0].reshape(-1, 6)[0, 0]) - 1] ^= 1
            if wrong and self.kind == "state":
                held = states[0].state_dict()
                held["residual"][7] += 1.0
                states[0].load_state_dict(held)
            return found

        return encode

    def _average(self) -> Any:
        real = cpu.Bucket.average

        def average(bucket: Any, *given: Any, **options: Any) -> Any:
            found = real(bucket, *given, **options)
            if self.kind == "average" and self.due:
                bucket.values[given[3][0]] += 1.0
            return found

        return average

    def _average_sums(self) -> Any:
        real = cpu.Bucket.average_sums

        def average(bucket: Any, *given: Any) -> Any:
            found = real(bucket, *given)
            if self.kind == "average" and self.due:
                bucket.values[given[3][0][0]] += 1.0
            return found

        return average

    def _split(self, real: Callable[..., Any]) -> Any:
        def split(*given: Any) -> Any:
            parts = real(*given)
            if self.kind == "cut" and self.due:
                parts[0][-1] ^= 1
            return parts

        return split

    def _merge(self, real: Callable[..., Any]) -> Any:
        def merge(*given: Any) -> Any:
            frames, *rest = real(*given)
            if self.kind == "sums" and self.due:
                frames[-1] ^= 1
            return frames, *rest

        return merge

    def _encode_by_kernels(self) -> Any:
        real = encoding.start

        def encode(
            codecs: Any, states: Any, ends: Any, limits: Any, gradients: Any, scale: float,
            out: torch.Tensor, *given: Any, **options: Any,
        ) -> Any:  # fmt: skip
            wrong = self.kind in ("frame", "scale", "state") and self.due
            factor = 2.0 if wrong and self.kind == "scale" else 1.0
            started = real(
                *(codecs, states, ends, limits, gradients, scale * factor, out), *given, **options
            )
            if wrong and self.kind == "frame":
                out[int(started.settle()[0, 0]) - 1] ^= 1
            if wrong and self.kind == "state":
                for at in range(1024, states[0]._device.numel(), 4):  # whichever buffer is current
                    states[0]._device[at] ^= 1
            return started

        return encode

    def _decode_by_kernels(self) -> Any:
        real = encoding.decode

        def decode(out: torch.Tensor, data: torch.Tensor, ends: Any, *given: Any) -> bool:
            done = real(out, data, ends, *given)
            if self.kind == "average" and self.due:
                out[ends[0]] += 1.0
            return done

        return decode


def trained(
    rank: int,
    world_size: int,
    codec: str = "gather",
    fault: str = "none",
    options: dict[str, Any] | None = None,
    small: bool = False,
    steps: int = STEPS,
) -> dict[str, Any]:
    """Train; on the last rank a fault shows from a step on. Return what came of it."""
    planted = Fault(fault if rank == world_size - 1 else "none")
    compared: set[tuple[int, int]] = set()
    made = verification.VerifiedBucket

    def making(task: Any, *given: Any, **more: Any) -> Any:
        compared.add((task.step.number, task.compared.number))
        return made(task, *given, **more)

    ddp = {"bucket_cap_mb": SMALL_BUCKETS} if small else {}
    module = network()
    found: dict[str, Any] = {"error": ""}
    optimizer = torch.optim.SGD(module.parameters(), lr=0.05)
    options = {"min_numel": 100} | (options or {})
    with (
        planted.planted(),
        patch.object(verification, "VerifiedBucket", making),
        warnings.catch_warnings(record=True) as caught,
    ):
        warnings.simplefilter("always")
        with attached(module, CODECS[codec](), options=options, **ddp) as (model, handle):
            step = 0
            try:
                for step in range(steps):
                    planted.on = step >= FAULTY
                    if step == FAULTY - 1 and planted.kind == "parameter":
                        with torch.no_grad():
                            next(module.parameters())[0] += 1e-6
                    inputs, targets = batch(rank, step)
                    optimizer.zero_grad()
                    torch.nn.functional.mse_loss(model(inputs), targets).backward()
                    optimizer.step()
            except RuntimeError as error:
                found["error"] = f"{type(error).__name__}: {error}"
                found["rank"] = getattr(error, "rank", None)
            found["state"] = plain(handle.state_dict())
            found |= {"step": step, "steps": handle.step}
    said = [str(each.message) for each in caught if "has another" in str(each.message)]
    return found | {
        "print": fingerprint(module),
        "compared": sorted(compared),
        "wrong": planted.done,
        "said": said,
    }


def disagreeing(rank: int, world_size: int) -> str:
    """Attach with another number on each rank."""
    try:
        with attached(network(), gradwire.topk(0.1), options={"verify": 1 + rank}):
            return ""
    except ValueError as error:
        return str(error)


def sharded(rank: int, world_size: int, fault: str, verify: int) -> dict[str, Any]:
    """Train a model of FSDP2 on two nodes of two ranks, with a fault on the last rank."""
    planted = Fault(fault if rank == world_size - 1 else "none")
    over, error = mesh(), ""
    model = shards(over["shard"])
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    with (
        planted.planted(),
        fsdp_attached(model, gradwire.topk(ratio=0.1), over, verify=verify) as handle,
    ):
        step = 0
        try:
            for step in range(STEPS):
                planted.on = step >= FAULTY
                if step == FAULTY - 1 and planted.kind == "parameter":
                    with torch.no_grad():
                        next(model.parameters()).to_local()[0] += 1e-6
                optimizer.zero_grad()
                model(batch(rank, step)[0]).square().mean().backward()
                optimizer.step()
        except RuntimeError as raised:
            error = f"{type(raised).__name__}: {raised}"
        found = {"error": error, "step": step, "state": plain(handle.state_dict())}
    return found | {"values": [bits(each) for each in full(model).values()]}
