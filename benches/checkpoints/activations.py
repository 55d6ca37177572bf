"""Train three models with activations kept in 8, 4 and 2 bits, beside none: memory, loss, time.

Each setting trains from the same weights on the same batches, for each seed; held-out loss is that
of the last step. Memory is what torch has allocated in a forward pass and not freed, with the graph
alive. Times are CPU time of whole steps on one thread, optimizer included; settings take turns.
About five minutes on two cores; with --quick one seed and a third of the steps.
"""

import contextlib
import dataclasses
import statistics
import time
from collections.abc import Callable, Iterator
from itertools import islice
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.profiler import ProfilerActivity, profile

import gradwire
from benches.accuracy.run import Task, evaluate
from benches.accuracy.tasks.fashion import Block
from benches.accuracy.tasks.text import Text
from benches.harness.command import progress
from benches.harness.digits import Digits
from benches.harness.recipes import recipe_for, scheduled
from benches.harness.tasks import SEED, Batch
from benches.weights.nets import MixtureText
from gradwire.torch import activations

BITS = (None, 8, 4, 2)
SEEDS, STEPS, RATE = 3, 150, 0.002
ROUNDS, TIMED = 7, 4
"""Turns of all settings, and steps of each, for times."""


class Residual(nn.Module):
    """A ResNet of three blocks with BatchNorm, for digits: 0.17 M parameters."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Sequential(
            nn.Conv2d(1, 32, 3, padding=1, bias=False), nn.BatchNorm2d(32), nn.ReLU()
        )
        self.blocks = nn.Sequential(Block(32, 32, 1), Block(32, 64, 2), Block(64, 64, 1))
        self.head = nn.Linear(64, 10)

    def forward(self, images: Tensor) -> Tensor:
        logits: Tensor = self.head(self.blocks(self.stem(images)).mean(dim=(2, 3)))
        return logits


class ResidualDigits:
    """scikit-learn's digits, with a convolutional network that has BatchNorm."""

    def __init__(self) -> None:
        self._source = Digits(batch=64)

    def model(self, seed: int) -> nn.Module:
        torch.manual_seed(SEED + seed)
        return Residual()

    def batches(self, rank: int, ranks: int, seed: int) -> Iterator[Batch]:
        return self._source.batches(rank, ranks, seed)

    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        images, labels = batch
        return functional.cross_entropy(model(images), labels)

    def evaluate(self, model: nn.Module) -> dict[str, float]:
        ((images, labels),) = self._source.held_out(0, 1)
        logits = model(images)
        return {
            "loss": float(functional.cross_entropy(logits, labels)),
            "accuracy": float((logits.argmax(1) == labels).double().mean()),
        }

    def facts(self) -> dict[str, object]:
        return self._source.facts()


TASKS: dict[str, Callable[[], Task]] = {
    "text transformer": Text,
    "mixture of experts": MixtureText,
    "residual network": ResidualDigits,
}


@dataclasses.dataclass(frozen=True)
class Row:
    """One model with one number of bits."""

    model: str
    bits: int | None
    #: On held-out data, by seed.
    losses: tuple[float, ...]
    accuracies: tuple[float, ...]
    #: Held between forward and backward; by torch, and of it what the packed modules saved.
    held: int
    saved: int
    kept: int
    #: Kept of what was packed, as a share of it.
    share: float
    #: CPU time of a step, as a multiple of one without packing.
    time: float


def measure(name: str, seeds: int = SEEDS, steps: int = STEPS) -> list[Row]:
    """Measure one model with every number of bits."""
    task = TASKS[name]()
    found = {bits: [_trained(task, bits, seed, steps) for seed in range(seeds)] for bits in BITS}
    times = _times(task)
    rows = []
    for bits, results in found.items():
        net, batch = task.model(0), next(task.batches(0, 1, 0))
        with _packing(net, bits) as handle:
            held = _held(lambda net=net, batch=batch: task.loss(net, batch))  # type: ignore[misc]
            report = None if handle is None else handle.report()
        rows.append(
            Row(
                name,
                bits,
                tuple(each["loss"] for each in results),
                tuple(each["accuracy"] for each in results),
                held,
                0 if report is None else report.saved_nbytes,
                0 if report is None else report.nbytes,
                1.0 if report is None else report.packed_share,
                times[bits] / times[None],
            )
        )
    return rows


def _packing(net: nn.Module, bits: int | None, seed: int = 0) -> Any:
    return contextlib.nullcontext() if bits is None else activations.attach(net, bits, seed=seed)


def _trained(task: Task, bits: int | None, seed: int, steps: int) -> dict[str, float]:
    net = task.model(seed)
    with _packing(net, bits, seed):
        step, schedule = _stepper(task, net, steps)
        for batch in islice(task.batches(0, 1, seed), steps):
            step(batch)
            schedule.step()
    found: dict[str, float] = evaluate(task, net)
    progress(f"{type(task).__name__}, {bits} bits, seed {seed}: loss {found['loss']:.4f}")
    return found


def _stepper(task: Task, net: nn.Module, steps: int) -> tuple[Callable[[Any], None], Any]:
    net.train()
    optimizer = recipe_for("adamw", None).optimizer(net.parameters(), RATE)

    def step(batch: Any) -> None:
        optimizer.zero_grad()
        task.loss(net, batch).backward()  # type: ignore[no-untyped-call]
        optimizer.step()

    return step, scheduled(optimizer, steps)


def _times(task: Task) -> dict[int | None, float]:
    """Return seconds of CPU time of a step on one thread, by the number of bits.

    A thread of torch that waits while another packs would count as work.
    """
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    gradwire.set_num_threads(1)
    net, batch = task.model(0), next(task.batches(0, 1, 0))
    step, _ = _stepper(task, net, STEPS)
    taken: dict[int | None, list[float]] = {bits: [] for bits in BITS}
    for _ in range(ROUNDS):
        for bits in BITS:
            with _packing(net, bits):
                step(batch)
                for _ in range(TIMED):
                    began = time.process_time()
                    step(batch)
                    taken[bits].append(time.process_time() - began)
    torch.set_num_threads(threads)
    gradwire.set_num_threads(threads)
    return {bits: statistics.quantiles(each, n=4)[0] for bits, each in taken.items()}


def _held(forward: Callable[[], Tensor]) -> int:
    """Return the bytes that torch has allocated in a forward pass and not freed."""
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as seen:
        loss = forward()
    del loss
    return int(sum(each.self_cpu_memory_usage for each in seen.key_averages()))


def lines(rows: list[Row]) -> list[str]:
    """Return the table, in Markdown."""
    found = [
        "| model | bits | held, MB | saved → kept, MB | packed size | loss | accuracy | step |",
        "|---|---:|---:|---:|---:|---:|---:|---:|",
    ]
    for each in rows:
        losses = " ".join(f"{loss:.4f}" for loss in each.losses)
        accuracy = statistics.mean(each.accuracies)
        packed = each.bits is not None
        kept = f"{each.saved / 1e6:.2f} → {each.kept / 1e6:.2f}" if packed else ""
        found.append(
            f"| {each.model} | {each.bits or 'exact'} | {each.held / 1e6:.2f} | {kept} | "
            f"{f'{each.share:.1%}' if packed else ''} | {losses} | {accuracy:.2%} | "
            f"{each.time:.2f} × |"
        )
    return found
