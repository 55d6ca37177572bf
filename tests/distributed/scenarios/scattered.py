"""Exchanges in which ranks own ranges: their bytes, what owners encode again, their failures."""

import contextlib
import os
import threading
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

import gradwire
import gradwire.torch.ddp
from gradwire.torch import backends
from gradwire.torch.ddp import ExchangeError, GradientError
from gradwire.torch.engine.step import Step
from gradwire.torch.exchange import owners
from gradwire.torch.exchange.wire import HEADER_NBYTES
from gradwire.torch.transport.process_group import ProcessGroupChannel
from tests.distributed.scenarios.common import (
    SHAPES,
    SMALL_BUCKETS,
    Given,
    attached,
    batch,
    fingerprint,
    gradients_of,
    integers,
    network,
    residuals,
    train,
)
from tests.distributed.scenarios.parity import preset

Spec = tuple[str, dict[str, Any]]
SPARSE: Spec = ("topk", {"ratio": 0.05, "exchange": "ReduceScatter"})


def made(codec: Spec) -> Any:
    """Build a codec from plain values."""
    return preset(codec[0], **codec[1])


class Counting:
    """Counts bytes where torch's process groups take them."""

    def __init__(self, rank: int, world_size: int) -> None:
        self.rank, self.size = rank, world_size
        self.calls: list[tuple[int, int]] = []
        self._real: Any = (
            ProcessGroupChannel.all_to_all,
            ProcessGroupChannel.all_gather,
            dist.ProcessGroup.send,
        )
        self._sent = threading.local()  # by this thread, in the collective that it starts
        self._stack = contextlib.ExitStack()

    def all_to_all(
        self,
        group: ProcessGroupChannel,
        out: torch.Tensor,
        mine: torch.Tensor,
        theirs: Any = None,
        sizes: Any = None,
    ) -> Any:
        self._sent.nbytes = 0
        work = self._real[0](group, out, mine, theirs, sizes)
        self.calls.append((mine.numel(), self._sent.nbytes))
        return work

    def send(self, group: Any, parts: list[torch.Tensor], *rest: Any) -> Any:
        self._sent.nbytes = getattr(self._sent, "nbytes", 0) + sum(each.nbytes for each in parts)
        return self._real[2](group, parts, *rest)

    def all_gather(self, group: ProcessGroupChannel, out: torch.Tensor, mine: torch.Tensor) -> Any:
        if mine.numel() == HEADER_NBYTES:  # not the message of a report
            self.calls.append((HEADER_NBYTES, HEADER_NBYTES * (self.size - 1)))
        return self._real[1](group, out, mine)

    def __enter__(self) -> "Counting":
        spies = {
            "all_to_all": lambda *call: self.all_to_all(*call),  # a method of the group
            "all_gather": lambda *call: self.all_gather(*call),
        }
        for name, spy in spies.items():
            self._stack.enter_context(mock.patch.object(ProcessGroupChannel, name, spy))
        send = mock.patch.object(dist.ProcessGroup, "send", lambda *call: self.send(*call))
        self._stack.enter_context(send)
        return self

    def __exit__(self, *raised: object) -> None:
        self._stack.close()


def steps(rank: int, world_size: int, codec: Spec = SPARSE, scale: int = 1) -> list[dict[str, Any]]:
    """Return of each step what went in, what came out, what was left, and what was counted."""
    found = []
    with attached(Given(), made(codec), bucket_cap_mb=SMALL_BUCKETS) as (model, handle):
        for step in range(4):
            handle.report(reset=True)
            before = residuals(handle)
            gradients = {name: scale * each for name, each in integers(5, rank, step).items()}
            model.zero_grad()
            with Counting(rank, world_size) as counting:
                model(gradients).backward()
            report = handle.report()
            buckets = [
                ([each.name for each in layout.compressed], layout.dense_numel)
                for layout in handle._passes._submitted
            ]
            found.append(
                {
                    "input": {key: before[key] + gradients[key].numpy().ravel() for key in before},
                    "before": before,
                    "average": gradients_of(model.module),
                    "after": residuals(handle),
                    "calls": counting.calls,
                    "wire": report.wire_bytes,
                    "buckets": buckets,
                    "runs": {key: handle._parameters[key].run for key in before},
                }
            )
    return found


def undone(rank: int, world_size: int, codec: Spec = SPARSE) -> dict[str, Any]:
    """Steps that do not count: one that is discarded, one with a gradient that is not finite."""
    found: dict[str, Any] = {"same": []}
    with attached(Given(), made(codec), bucket_cap_mb=SMALL_BUCKETS) as (model, handle):

        def backward(gradients: dict[str, torch.Tensor]) -> None:
            model.zero_grad()
            model(gradients).backward()

        def compare(before: dict[str, np.ndarray]) -> None:
            after = residuals(handle)
            found["same"].append(all(np.array_equal(before[key], after[key]) for key in before))

        for step in range(3):
            backward(integers(1, rank, step))
        before = residuals(handle)
        backward(integers(1, rank, 3))
        compare(before)
        handle.discard()
        compare(before)
        gradients = integers(1, rank, 3)
        if rank == 1:
            gradients["b"][3, 2] = np.inf
        try:
            backward(gradients)
        except GradientError as error:
            found["error"] = (error.name, error.rank, error.first)
        compare(before)
        # Sums of finite entries that are not finite: only their owner sees them.
        gradients = integers(1, rank, 3)
        gradients["a"][5, 7] = 3e38
        try:
            backward(gradients)
        except GradientError as error:
            found["sum"] = (error.name, error.rank, error.first)
        compare(before)
        backward(integers(1, rank, 4))
        compare(before)
        found["step"] = handle.step
    return found


def fails(rank: int, world_size: int, where: str, how: str, codec: Spec = SPARSE) -> dict[str, Any]:
    """After two good steps rank 1 fails in one phase: say what each rank sees and keeps."""
    module = network()
    model = DistributedDataParallel(module, bucket_cap_mb=SMALL_BUCKETS)
    handle = gradwire.torch.ddp.attach(model, made(codec))
    train(model, rank, range(2))
    before = residuals(handle)
    found: dict[str, Any] = {"error": "", "later": ""}

    def trouble(*arguments: Any, **options: Any) -> Any:
        if how == "dies":
            os._exit(7)
        raise MemoryError(f"no memory to {where}")

    real, calls = Step.undo, []

    def undo(step: Step, parameters: Any) -> None:
        calls.append(step)
        if len(calls) == 1:
            trouble()
        real(step, parameters)

    (bucket,) = {type(backends.backend_for(each).bucket(each)) for each in module.parameters()}
    place, name, replaced = {
        "encode": (bucket, "encode", trouble),
        "cut": (bucket, "split", trouble),
        "undo": (Step, "undo", undo),
        "merge": (bucket, "merge", trouble),
        "copy": (owners, "_copies", trouble),
    }[where]
    with mock.patch.object(place, name, replaced if rank == 1 else getattr(place, name)):
        try:
            train(model, rank, range(2, 3))
        except ExchangeError as caught:
            found["error"] = str(caught)
    after = residuals(handle)
    found["kept"] = all(np.array_equal(before[key], after[key]) for key in before)
    try:
        train(model, rank, range(3, 4))
    except ExchangeError as caught:
        found["later"] = str(caught)
    handle.detach()
    return found


def after_a_gather(rank: int, world_size: int) -> int:
    """Count what is trimmed after a checkpoint of an all-gather of much smaller frames."""
    few = {name: torch.zeros_like(each) for name, each in integers(3, rank, 0).items()}
    for each in few.values():
        each.view(-1)[0] = 1.0
    with attached(Given(), gradwire.topk(0.05)) as (model, handle):
        for _ in range(4):
            model.zero_grad()
            model(few).backward()
        saved = handle.state_dict()
    with attached(Given(), made(SPARSE)) as (model, handle):
        handle.load_state_dict(saved)
        for step in range(3):
            model.zero_grad()
            model(integers(3, rank, step)).backward()
        report = handle.report()
    return sum(each.trimmed for each in report.parameters if not each.dense)


def save(rank: int, world_size: int, folder: str, codec: Spec = SPARSE) -> dict[str, np.ndarray]:
    """Leave something in the residuals, and a file for each rank."""
    with attached(Given(), made(codec)) as (model, handle):
        for step in range(3):
            model.zero_grad()
            model(integers(9, rank, step)).backward()
        torch.save(handle.state_dict(), Path(folder) / f"rank{rank}.pt")
        return residuals(handle)


def load(
    rank: int, world_size: int, folder: str, old_size: int, codec: Spec = SPARSE
) -> dict[str, Any]:
    """Load the files of another number of ranks, and go on: other ranks own the entries."""
    files = [Path(folder) / f"rank{old}.pt" for old in range(old_size)]
    saved: Any = [torch.load(file, weights_only=True) for file in files]
    with attached(Given(), made(codec), bucket_cap_mb=SMALL_BUCKETS) as (model, handle):
        handle.load_state_dict(saved, policy="sum-and-split")
        left = residuals(handle)
        given = {key: np.zeros(each.size) for key, each in left.items()}
        applied = {key: np.zeros(each.size) for key, each in left.items()}
        for step in range(3, 6):
            gradients = integers(9, rank, step)
            model.zero_grad()
            model(gradients).backward()
            for key in given:
                given[key] += gradients[key].numpy().ravel()
                applied[key] += gradients_of(model.module)[key] * world_size
        after, print_ = residuals(handle), handle.step
    return {"left": left, "given": given, "applied": applied, "after": after, "step": print_}


def refusals(rank: int, world_size: int, codec: Spec = SPARSE) -> dict[str, str]:
    """Where it cannot work."""
    found = {}
    tensor = torch.ones(2000)
    calls: dict[str, Any] = {
        "all_reduce": lambda: gradwire.torch.all_reduce(
            tensor, made(codec), gradwire.torch.init_state(made(codec), tensor)
        ),
        "hierarchy": lambda: gradwire.torch.ddp.attach(
            DistributedDataParallel(network()), made(codec), hierarchy=2
        ),
    }
    for name, call in calls.items():
        try:
            call()
        except ValueError as error:
            found[name] = str(error)
    return found


def replicas(rank: int, world_size: int, codecs: list[Spec], ddp: dict[str, Any]) -> list[str]:
    """Train a network with each of the codecs, and return the bits of its parameters."""
    found = []
    for codec in codecs:
        with attached(network(), made(codec), **ddp) as (model, _):
            train(model, rank, range(6))
            found.append(fingerprint(model))
    return found


def drawn(rank: int, world_size: int, codec: Spec, times: int) -> dict[str, np.ndarray]:
    """Average the same gradients many times: sums and squares of what came out."""
    random = np.random.default_rng(rank)
    gradients = {name: torch.zeros(shape) for name, shape in SHAPES.items()}
    gradients["a"] = torch.from_numpy(random.standard_normal(SHAPES["a"]).astype(np.float32))
    expected = gradients["a"].clone()
    torch.distributed.all_reduce(expected)
    total, squares = np.zeros(expected.numel()), np.zeros(expected.numel())
    with attached(Given(), made(codec)) as (model, _):
        for _ in range(times):
            model.zero_grad()
            model(gradients).backward()
            found = gradients_of(model.module)["a"]
            total += found
            squares += found**2
    mean = expected.double().numpy().ravel() / world_size
    return {"sum": total, "squares": squares, "expected": mean}


def in_modes(rank: int, world_size: int, codecs: list[Spec]) -> dict[str, str]:
    """Train with a codec of some parameters, and with gradients that are accumulated."""
    found = {}
    codec, other = map(made, codecs)
    with attached(network(), {"0.*": codec, "*": other}, bucket_cap_mb=SMALL_BUCKETS) as (model, _):
        train(model, rank, range(4))
        found["several"] = fingerprint(model)
    with attached(network(), codec, bucket_cap_mb=SMALL_BUCKETS) as (model, _):
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
        for step in range(6):
            with contextlib.nullcontext() if step % 2 else model.no_sync():
                inputs, targets = batch(rank, step)
                torch.nn.functional.mse_loss(model(inputs), targets).backward()
            if step % 2:
                optimizer.step()
                optimizer.zero_grad()
        found["accumulated"] = fingerprint(model)
    return found
