"""The commands that a rank executes: measure the link, train, evaluate."""

import gc
import hashlib
import importlib
import socket
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from torch import nn

import gradwire
from benches.demo.frameworks import DDP, OWN, Framework, Prepared, dense_bytes
from benches.harness.recipes import Rate, rate_for, recipe_for, scheduled
from benches.harness.tasks import Batch, Task, loss_sum
from gradwire.cli.codecs import build

EVALUATIONS = 12
_WARM_UP = 0.05  # seconds until the token bucket is empty and the congestion window open
_PATIENCE = 30.0  # seconds to wait for the other end

Say = Callable[..., None]


def evaluation_steps(steps: int) -> list[int]:
    """Return the steps after which to evaluate, denser early on, where curves are steep."""
    return sorted({round(steps * (i / EVALUATIONS) ** 1.5) for i in range(EVALUATIONS + 1)})


class Rank:
    """State that a rank keeps between commands."""

    def __init__(self, setup: dict[str, Any], say: Say, framework: Framework) -> None:
        self.rank, self.ranks, self.address = setup["rank"], setup["ranks"], setup["address"]
        self.interface, self.shaped = setup["interface"], setup["shaped"]
        self.say, self.framework = say, framework
        self._tasks: dict[str, Task] = {}
        own = {"torch": torch.__version__, "simd": str(gradwire.simd_level())}
        self.versions = own | framework.versions

    def task(self, name: str) -> Task:
        """Return the task of that name; its data is loaded once."""
        if name not in self._tasks:
            if name not in ("digits", "text"):
                raise ValueError(f"unknown task {name!r}")
            # Each needs libraries that the other does not, and that take seconds to import.
            module = importlib.import_module(f"benches.harness.{name}")
            self._tasks[name] = getattr(module, name.capitalize())()
        return self._tasks[name]

    def probe(self, seconds: float) -> list[float]:
        """Return the speed of a plain TCP stream between the first two ranks, each way."""
        ways = ((0, 1), (1, 0))
        tell = self.framework.broadcast
        return [one_way(self.rank, ends, self.address, seconds, tell) for ends in ways]

    def train(
        self,
        task: str,
        method: str,
        steps: int,
        evaluate: bool,
        ratio: float | None = None,
        learning_rate: float | None = None,
    ) -> dict[str, Any]:
        """Train from scratch, and return the record; only steps are timed, not evaluation.

        The optimizer is the one recommended for the codec, the learning rate by default the
        measured.
        """
        todo = self.task(task)
        module = todo.model()
        made = None if method in OWN else build(method, ratio)
        recipe = recipe_for(todo.usual, made)
        rate = (
            rate_for(task, method, made, str(recipe))
            if learning_rate is None
            else Rate(learning_rate, "given")
        )
        optimizer = recipe.optimizer(module.parameters(), rate.value)
        prepared = self.framework.prepare(module, optimizer, method, made)
        try:
            batches = todo.batches(self.rank, self.ranks)
            record = self._train(todo, batches, module, prepared, steps, evaluate)
            record |= prepared.traffic()
        finally:
            prepared.detach()
        record["dense_bytes_per_step"] = dense_bytes(module.parameters(), self.ranks)
        record["parameters"] = sum(parameter.numel() for parameter in module.parameters())
        record["replicas_identical"] = self._identical(module)
        record["optimizer"] = str(recipe)
        record["learning_rate"], record["rate_source"] = rate.value, rate.source
        record["facts"] = todo.facts()
        del module, optimizer, prepared
        gc.collect()
        return record

    def _train(
        self,
        task: Task,
        batches: Iterator[Batch],
        module: nn.Module,
        prepared: Prepared,
        steps: int,
        evaluate: bool,
    ) -> dict[str, Any]:
        model, optimizer = prepared.model, prepared.optimizer
        schedule = scheduled(optimizer, steps)
        pauses = evaluation_steps(steps) if evaluate else [0, steps]
        held_out = task.held_out(self.rank, self.ranks) if evaluate else []
        seconds: list[float] = []
        losses: list[float] = []
        curve: list[dict[str, float]] = []
        wire, told = 0, 0.0
        for begin, end in zip(pauses, [*pauses[1:], steps], strict=True):
            if evaluate:
                loss, accuracy = self._evaluate(module, held_out)
                curve.append(
                    {"step": begin, "seconds": sum(seconds), "loss": loss, "accuracy": accuracy}
                )
            self.framework.barrier()
            before = sent_bytes(self.interface)
            for step in range(begin, end):
                start = time.perf_counter()
                total, _, count = loss_sum(model, next(batches))
                loss_now = total / count
                optimizer.zero_grad()
                loss_now.backward()  # type: ignore[no-untyped-call]
                optimizer.step()
                schedule.step()
                now = time.perf_counter()
                seconds.append(now - start)
                losses.append(loss_now.item())
                if now - told > 0.1 and self.rank == 0:
                    told = now
                    self.say("step", step=step + 1, loss=losses[-1], seconds=sum(seconds))
            self.framework.barrier()
            after = sent_bytes(self.interface)
            wire += after - before if after is not None and before is not None else 0
        return {
            "step_seconds": seconds,
            "training_loss": losses,
            "curve": curve,
            # Other programs share the loopback device, so its counters would include their traffic.
            "wire_bytes_per_step": wire / steps if self.shaped else None,
        }

    def _evaluate(self, module: nn.Module, held_out: list[Any]) -> tuple[float, float]:
        """Return loss and accuracy on the held-out data; every rank evaluates its share."""
        module.eval()
        sums = torch.zeros(3, dtype=torch.float64)
        with torch.no_grad():
            for batch in held_out:
                loss, right, count = loss_sum(module, batch)
                sums += torch.tensor([loss.item(), right.item(), count], dtype=torch.float64)
        module.train()
        sums = self.framework.total(sums)
        return float(sums[0] / sums[2]), float(sums[1] / sums[2])

    def _identical(self, model: nn.Module) -> bool:
        """Return whether all ranks ended with the same bits."""
        digest = hashlib.sha256()
        for parameter in model.parameters():
            digest.update(parameter.detach().numpy().tobytes())
        return len(set(self.framework.gather(digest.hexdigest()))) == 1


def one_way(
    rank: int, ends: tuple[int, int], address: str, seconds: float, tell: Callable[[Any, int], Any]
) -> float:
    """Return the bits per second of a TCP stream between two ranks. A collective.

    ``ends`` are the rank that sends and the one that receives; ``tell(value, rank)`` returns the
    value of that rank on every rank.
    """
    source, sink = ends
    rate = 0.0
    if rank == sink:
        with socket.create_server((address, 0)) as server:
            server.settimeout(_PATIENCE)
            tell(server.getsockname(), sink)
            with server.accept()[0] as stream:
                rate = _receive(stream)
    else:
        there = tell(None, sink)
        if rank == source:
            with socket.create_connection(tuple(there), timeout=_PATIENCE) as stream:
                end = time.perf_counter() + seconds
                while time.perf_counter() < end:
                    stream.sendall(bytes(1 << 16))
    return float(tell(rate, sink))


def _receive(stream: socket.socket) -> float:
    stream.settimeout(_PATIENCE)
    buffer, count, counted = bytearray(1 << 18), 0, 0.0
    first = last = time.perf_counter()
    while size := stream.recv_into(buffer):
        before, last = last, time.perf_counter()
        if before - first > _WARM_UP:
            count, counted = count + size, counted + last - before
    return 8 * count / counted if counted else 0.0


def sent_bytes(interface: str) -> int | None:
    """Return the bytes that an interface in this network namespace has sent, or None if unknown."""
    try:
        lines = Path("/proc/self/net/dev").read_text(encoding="ascii").splitlines()
    except OSError:
        return None
    for line in lines:
        name, _, counters = line.partition(":")
        if name.strip() == interface:
            return int(counters.split()[8])
    return None


def join(setup: dict[str, Any], say: Say) -> Rank:
    framework: Framework
    if setup["horovod"]:
        from benches.demo.with_horovod import Horovod

        framework = Horovod(setup)
    else:
        framework = DDP(setup)
    return Rank(setup, say, framework)
