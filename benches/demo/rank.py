"""The process of one rank: train with a method, and evaluate.

``none`` and ``bf16`` are DDP's own methods, and ``compute`` exchanges nothing: an upper bound for
what can be gained. Every other name is a preset of gradwire, looked up by name, so that a new
preset needs no change here.
"""

import gc
import hashlib
import time
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks import debugging_hooks
from torch.nn.parallel import DistributedDataParallel
from torch.optim import Optimizer

import gradwire
from benches.accuracy import run
from benches.accuracy.run import Task
from benches.accuracy.tasks.text import Text
from benches.harness.rank_process import form_group
from benches.harness.recipes import rate_for, recipe_for, scheduled
from benches.harness.tasks import Digits, half_hook
from gradwire.cli.codecs import build
from gradwire.schedule import Constant
from gradwire.torch import ddp

OWN = ("compute", "none", "bf16")
BUCKET_MB = 1
"""The same buckets for every method: two per model, so that DDP can overlap the first with the rest
of the backward pass."""
EVALUATIONS = 12

Say = Callable[..., None]


USUAL = {"digits": "sgd", "text": "adamw"}
"""What such models are trained with if nothing is compressed."""


@cache
def task_of(name: str, ranks: int) -> Task:
    """Return a task, whose data is loaded once."""
    return Digits(32 * ranks) if name == "digits" else Text(batch=8 * ranks, held_out=64)


def evaluation_steps(steps: int) -> list[int]:
    """Return the steps after which to evaluate, denser early on, where curves are steep."""
    return sorted({round(steps * (i / EVALUATIONS) ** 1.5) for i in range(EVALUATIONS + 1)})


class Rank:
    def __init__(self, setup: dict[str, Any], say: Say) -> None:
        form_group(setup, seconds=120)
        self.rank, self.ranks = setup["rank"], setup["ranks"]
        self.interface, self.shaped = setup["interface"], setup["shaped"]
        self.say = say
        self.versions = {"torch": torch.__version__, "simd": str(gradwire.simd_level())}

    def train(
        self, task: str, method: str, steps: int, evaluate: bool, ratio: float
    ) -> dict[str, Any]:
        """Train from scratch, and return the record; only steps are timed, not evaluation."""
        todo = task_of(task, self.ranks)
        module = todo.model(0)
        codec = None if method in OWN else build(method, ratio)
        recipe = recipe_for(USUAL[task], codec)
        rate = rate_for(task, method, codec, str(recipe))
        optimizer = recipe.optimizer(module.parameters(), rate.value)
        model = DistributedDataParallel(
            module, bucket_cap_mb=BUCKET_MB, gradient_as_bucket_view=True
        )
        handle = None
        if codec is not None:
            handle = ddp.attach(model, codec, optimizer=optimizer, schedule=Constant())
        elif method != "none":
            model.register_comm_hook(
                None, half_hook if method == "bf16" else debugging_hooks.noop_hook
            )
        parameters = sum(parameter.numel() for parameter in module.parameters())
        # In a ring, a rank sends all but its own share twice: to reduce it, and to gather it.
        dense = 2 * (self.ranks - 1) / self.ranks * parameters * torch.float32.itemsize
        sent = dense * {"none": 1.0, "bf16": 0.5}.get(method, 0.0)
        record = {"bytes_per_step": sent, "achieved": None}
        try:
            record |= self._train(todo, model, optimizer, steps, evaluate)
            if handle is not None:
                report = handle.report()
                record["bytes_per_step"], record["achieved"] = report.wire_bytes, report.achieved
        finally:
            if handle is not None:
                handle.detach()
        record |= {
            "parameters": parameters,
            "replicas_identical": self._identical(module),
            "optimizer": str(recipe),
            "learning_rate": rate.value,
            "rate_source": rate.source,
            "facts": todo.facts(),
        }
        del module, optimizer, model, handle
        gc.collect()
        return record

    def _train(
        self, task: Task, model: Any, optimizer: Optimizer, steps: int, evaluate: bool
    ) -> dict[str, Any]:
        schedule, batches = scheduled(optimizer, steps), task.batches(self.rank, self.ranks, 0)
        pauses = evaluation_steps(steps) if evaluate else [0, steps]
        seconds: list[float] = []
        losses: list[float] = []
        curve: list[dict[str, float]] = []
        wire, told = 0, 0.0
        for begin, end in zip(pauses, [*pauses[1:], steps], strict=True):
            if evaluate and self.rank == 0:
                found = run.evaluate(task, model.module)
                curve.append({"step": begin, "seconds": sum(seconds), **found})
            dist.barrier()
            before = sent_bytes(self.interface)
            for step in range(begin, end):
                start = time.perf_counter()
                loss = task.loss(model, next(batches))
                optimizer.zero_grad()
                loss.backward()  # type: ignore[no-untyped-call]
                optimizer.step()
                schedule.step()
                now = time.perf_counter()
                seconds.append(now - start)
                losses.append(loss.item())
                if now - told > 0.1 and self.rank == 0:
                    told = now
                    self.say("step", step=step + 1, loss=losses[-1])
            dist.barrier()
            wire += sent_bytes(self.interface) - before
        return {
            "step_seconds": seconds,
            "training_loss": losses,
            "curve": curve,
            # Other programs share the loopback device, so its counters would include their traffic.
            "wire_bytes_per_step": wire / steps if self.shaped else None,
        }

    def _identical(self, model: nn.Module) -> bool:
        digest = hashlib.sha256()
        for parameter in model.parameters():
            digest.update(parameter.detach().numpy().tobytes())
        found: list[Any] = [None] * self.ranks
        dist.all_gather_object(found, digest.hexdigest())
        return len(set(found)) == 1


def sent_bytes(interface: str) -> int:
    """Return the bytes that an interface in this network namespace has sent; 0 if unknown."""
    try:
        lines = Path("/proc/self/net/dev").read_text(encoding="ascii").splitlines()
    except OSError:
        return 0
    counters = {name.strip(): rest for name, _, rest in (line.partition(":") for line in lines)}
    return int(counters[interface].split()[8]) if interface in counters else 0


join = Rank
