"""The process of one rank: what each line on its standard input asks for."""

import gc
import hashlib
import itertools
import json
import statistics
import sys
import time
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from benches.accuracy.run import evaluate
from benches.accuracy.worker import make_task
from benches.harness.tasks import share_of_rate
from benches.joining import join, obey

from . import models
from .loops import Loop
from .plan import LARGE, SECTIONS

PAUSE = 0.05  # seconds for the queues of the link to run empty
BATCHES = 4
LOADED = 50  # batches that whole runs load together
WARM = 4  # steps: DDP rebuilds its buckets, PowerSGD begins, codecs learn their sizes


class Commands:
    """What the parent can ask for."""

    def __init__(self, rank: int, ranks: int) -> None:
        self._rank, self._ranks = rank, ranks
        self._loops: dict[str, Loop] = {}
        self._task: Any = None
        self._batches: list[Any] = []

    def load(
        self, section: str, contestants: list[tuple[str, str, float | None]], data: str | None
    ) -> dict[str, Any]:
        """Make the models of contestants of a section, in place of those before."""
        self.unload()
        chosen = SECTIONS[section]
        self._task = models.timed(chosen.task, None if data is None else Path(data))
        shares = models.shares(self._task, self._rank, self._ranks, 0)
        self._batches = list(itertools.islice(shares, BATCHES))
        states: list[dict[str, Any]] = []
        for name, method, bucket in contestants:
            module = self._task.model(0)
            loop = Loop(module, chosen.family, method, bucket=bucket)
            for _ in range(WARM):
                loop.step(self._task, self._batches[0])
            if section == LARGE and type(loop.optimizer) is torch.optim.AdamW:
                _share(loop.optimizer, states)
            self._loops[name] = loop
        return {"contestants": list(self._loops)}

    def unload(self) -> dict[str, Any]:
        """Forget the models."""
        for loop in self._loops.values():
            loop.close()
        self._loops.clear()
        self._task = None
        gc.collect()
        return {}

    def step(self, contestant: str, steps: int) -> dict[str, Any]:
        """Return the time of a step, over so many after a pause, and what ``auto`` then says."""
        time.sleep(PAUSE)
        return self.settle(contestant, steps)

    def settle(self, contestant: str, steps: int) -> dict[str, Any]:
        """Return the time of a step, over so many without a pause, and what ``auto`` then says."""
        loop = self._loops[contestant]
        batches = list(itertools.islice(itertools.cycle(self._batches), steps))
        return {**loop.timed(self._task, batches), "said": loop.said()}

    def anew(self, contestant: str) -> dict[str, Any]:
        """Have ``auto`` forget what it knows of the link before."""
        self._loops[contestant].decide_anew()
        return {}

    def facts(self, contestant: str) -> dict[str, Any]:
        """Return what a contestant sends, and what ``auto`` says."""
        loop = self._loops[contestant]
        return {"nbytes": loop.nbytes(), "said": loop.said()}

    def whole(
        self,
        section: str,
        method: str,
        bucket: float | None,
        rate: float,
        steps: int,
        seed: int,
        data: str | None,
    ) -> dict[str, Any]:
        """Train from scratch to the end, as `benches.accuracy.run.run` does, and evaluate.

        Loading data is not part of the time: ranks wait for each other when all have their batches.
        """
        self.unload()
        chosen = SECTIONS[section]
        task = make_task(chosen.task, None if data is None else Path(data))
        module = task.model(seed)
        loop = Loop(module, chosen.family, method, bucket=bucket, rate=rate)
        shares = models.shares(task, self._rank, self._ranks, seed)
        seconds: list[float] = []
        worked = 0.0
        for first in range(0, steps, LOADED):
            batches = list(itertools.islice(shares, min(LOADED, steps - first)))
            dist.barrier()
            began = time.process_time()
            for step, batch in enumerate(batches, first):
                begin = time.perf_counter()
                for group in loop.optimizer.param_groups:
                    group["lr"] = rate * share_of_rate(step, steps)
                loop.step(task, batch)
                seconds.append(time.perf_counter() - begin)
            worked += time.process_time() - began
        digest = hashlib.sha256()
        for parameter in module.parameters():
            digest.update(parameter.detach().numpy().tobytes())
        loop.close()
        return {
            "seconds": sum(seconds),
            "median": statistics.median(seconds),
            "cpu": worked / steps,
            "digest": digest.hexdigest(),
            **evaluate(task, module),
        }


def _share(optimizer: torch.optim.Optimizer, kept: list[dict[str, Any]]) -> None:
    """Let all optimizers of the large model have one state: only their time is of interest."""
    parameters = [each for group in optimizer.param_groups for each in group["params"]]
    if not kept:
        kept += [optimizer.state[each] for each in parameters]
        return
    for parameter, state in zip(parameters, kept, strict=True):
        optimizer.state[parameter] = state


def main(setup: dict[str, Any]) -> None:
    """Join the other ranks, and do what each line of standard input says."""
    say = join(setup, seconds=600)
    say(torch=torch.__version__)
    obey(Commands(setup["rank"], setup["ranks"]), say)


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
