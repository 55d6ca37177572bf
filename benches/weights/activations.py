"""Train three models with activations kept in 8, 4 and 2 bits, beside none: memory, loss, time.

Each setting trains from the same weights on the same batches, for each seed; held-out loss is that
of the last step. Memory is what torch has allocated in a forward pass and not freed, with the graph
alive. Times are CPU time of whole steps on one thread, optimizer included; settings take turns.
"""

import contextlib
import statistics
import time
from collections.abc import Callable
from itertools import islice
from typing import Any

from torch import Tensor, nn
from torch.profiler import ProfilerActivity, profile

from benches.accuracy.run import Task, evaluate
from benches.accuracy.tasks.fashion import Block
from benches.accuracy.tasks.text import Text
from benches.compare.timing import Tick, one_thread
from benches.harness.digits import Digits
from benches.harness.recipes import recipe_for, scheduled
from gradwire.torch import activations

from .models import OtherText, mixture

BITS = (None, 8, 4, 2)
SEEDS, STEPS, RATE = 3, 150, 0.002
ROUNDS, TIMED = 7, 4
"""Turns of all settings, and steps of each, for times."""

Row = dict[str, Any]


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


TASKS: dict[str, Callable[[], Task]] = {
    "text transformer": Text,
    "mixture of experts": lambda: OtherText(mixture),
    "residual network": lambda: Digits(64, Residual),
}


def measure(quick: bool, tick: Tick) -> list[Row]:
    """Return a row for every model with every number of bits."""
    seeds, steps = (1, STEPS // 3) if quick else (SEEDS, STEPS)
    return [row for name in TASKS for row in rows(name, seeds, steps, tick)]


def rows(name: str, seeds: int, steps: int, tick: Tick) -> list[Row]:
    """Return a row for one model with every number of bits.

    ``held`` are bytes between forward and backward; ``saved`` and ``kept`` those of the packed
    modules, before and after packing; ``share`` is kept over packed.
    """
    task = TASKS[name]()
    found: dict[Any, list[dict[str, float]]] = {bits: [] for bits in BITS}
    for bits in BITS:
        for seed in range(seeds):
            tick(f"{name}, {bits or 'no'} bits, seed {seed}")
            found[bits].append(_trained(task, bits, seed, steps))
    times, made = _times(task), []
    for bits, ends in found.items():
        net, batch = task.model(0), next(task.batches(0, 1, 0))
        with _packing(net, bits) as handle:
            held = _held(lambda net=net, batch=batch: task.loss(net, batch))  # type: ignore[misc]
            report = None if handle is None else handle.report()
        made.append({
            "model": name,
            "bits": bits,
            "losses": [each["loss"] for each in ends],
            "accuracies": [each["accuracy"] for each in ends],
            "held": held,
            "saved": report.saved_nbytes if report else 0,
            "kept": report.nbytes if report else 0,
            "share": report.packed_share if report else 1.0,
            "time": times[bits] / times[None],
        })  # fmt: skip
    return made


def _packing(net: nn.Module, bits: int | None, seed: int = 0) -> Any:
    return contextlib.nullcontext() if bits is None else activations.attach(net, bits, seed=seed)


def _trained(task: Task, bits: int | None, seed: int, steps: int) -> dict[str, float]:
    net = task.model(seed)
    with _packing(net, bits, seed):
        step, schedule = _stepper(task, net, steps)
        for batch in islice(task.batches(0, 1, seed), steps):
            step(batch)
            schedule.step()
    return evaluate(task, net)


def _stepper(task: Task, net: nn.Module, steps: int) -> tuple[Callable[[Any], None], Any]:
    net.train()
    optimizer = recipe_for("adamw", None).optimizer(net.parameters(), RATE)

    def step(batch: Any) -> None:
        optimizer.zero_grad()
        task.loss(net, batch).backward()  # type: ignore[no-untyped-call]
        optimizer.step()

    return step, scheduled(optimizer, steps)


def _times(task: Task) -> dict[int | None, float]:
    """Return seconds of CPU time of a step by the number of bits.

    A thread of torch that waits while another packs would count as work.
    """
    net, batch = task.model(0), next(task.batches(0, 1, 0))
    step, _ = _stepper(task, net, STEPS)
    taken: dict[int | None, list[float]] = {bits: [] for bits in BITS}
    with one_thread():
        for _ in range(ROUNDS):
            for bits in BITS:
                with _packing(net, bits):
                    step(batch)
                    for _ in range(TIMED):
                        began = time.process_time()
                        step(batch)
                        taken[bits].append(time.process_time() - began)
    return {bits: statistics.quantiles(each, n=4)[0] for bits, each in taken.items()}


def _held(forward: Callable[[], Tensor]) -> int:
    """Return the bytes that torch has allocated in a forward pass and not freed."""
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as seen:
        loss = forward()
    del loss
    return int(sum(each.self_cpu_memory_usage for each in seen.key_averages()))


def table(found: list[Row]) -> str:
    """Return the table, in Markdown."""
    lines = [
        "| model | bits | held, MB | saved → kept, MB | packed size | loss | accuracy | step |",
        "|---|---:|---:|---:|---:|---:|---:|---:|",
    ]
    for row in found:
        packed = row["bits"] is not None
        cells = (
            row["model"],
            row["bits"] or "exact",
            f"{row['held'] / 1e6:.2f}",
            f"{row['saved'] / 1e6:.2f} → {row['kept'] / 1e6:.2f}" if packed else "",
            f"{row['share']:.1%}" if packed else "",
            " ".join(f"{loss:.4f}" for loss in row["losses"]),
            f"{statistics.mean(row['accuracies']):.2%}",
            f"{row['time']:.2f} ×",
        )
        lines.append(f"| {' | '.join(map(str, cells))} |")
    return "\n".join(lines)
