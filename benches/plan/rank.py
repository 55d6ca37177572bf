"""The process of one rank: what each line on its standard input asks for."""

import json
import sys
import time
import warnings
from collections.abc import Callable, Sequence
from dataclasses import asdict
from statistics import median
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import gradwire
from benches.harness.half import half_hook
from benches.joining import join, obey
from gradwire.cost import calibrate
from gradwire.presets import PRESETS
from gradwire.schedule import Constant
from gradwire.torch import cost, ddp, optim

LAYERS, WIDTH, BATCH = 8, 1024, 64
NUMEL = LAYERS * WIDTH**2
BUCKET_MB = 8
RATIO = 0.01
THRESHOLD = 1e-3
PAUSE = 0.05  # seconds for the queues of the link to run empty
PROFILED = 5  # steps without any exchange, in each turn
SETTLED = 6  # steps until DDP has rebuilt its buckets, and codecs know their sizes

DENSE = ("fp32", "bf16")
METHODS = (*DENSE, *PRESETS)


def codec(name: str) -> gradwire.Codec:
    """Return a preset with the options of this benchmark."""
    make: Callable[..., gradwire.Codec] = PRESETS[name].build
    if name in {"threshold", "strom"}:
        return make(threshold=THRESHOLD)
    try:
        return make(ratio=RATIO)
    except TypeError:
        return make()  # it has no ratio


class Loop:
    """A model that trains with one method; the method "" exchanges nothing."""

    def __init__(self, method: str) -> None:
        torch.manual_seed(0)
        layers = [
            part for _ in range(LAYERS) for part in (nn.Linear(WIDTH, WIDTH, bias=False), nn.ReLU())
        ]
        self.model = DistributedDataParallel(
            nn.Sequential(*layers), bucket_cap_mb=BUCKET_MB, gradient_as_bucket_view=True
        )
        self.input = torch.randn(BATCH, WIDTH)
        self.handle: ddp.Handle | None = None
        if method == "bf16":
            self.model.register_comm_hook(None, half_hook)
        parameters = self.model.parameters()
        self.optimizer: torch.optim.Optimizer = torch.optim.SGD(parameters, lr=1e-3)
        if method in PRESETS:
            self._attach(codec(method))

    def _attach(self, chosen: gradwire.Codec) -> None:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ddp.PairingWarning)
            if isinstance(chosen.memory, gradwire.memory.AdamCorrection):
                # Steps are sent, which no other optimizer applies.
                self.optimizer = optim.AdamW(self.model.parameters(), lr=1e-3, fused=True)
                self.handle = ddp.attach(
                    self.model, chosen, optimizer=self.optimizer, schedule=Constant()
                )
            else:
                self.handle = ddp.attach(self.model, chosen)

    def step(self) -> None:
        """Train on the same batch once more."""
        self.model(self.input).square().mean().backward()
        self.optimizer.step()
        self.optimizer.zero_grad()

    def timed(self, count: int) -> float:
        """Return the seconds of a step: of so many, one after another, after one more."""
        time.sleep(PAUSE)
        dist.barrier()
        self.step()  # after a pause, and after one of another model: training has neither
        start = time.perf_counter()
        for _ in range(count):
            self.step()
        return (time.perf_counter() - start) / count


class Commands:
    """What the parent can ask for."""

    def __init__(self) -> None:
        self.loops: dict[str, Loop] = {}
        self.plain: Loop | None = None

    def use(self, methods: Sequence[str]) -> dict[str, float]:
        """Train with these methods from now on; return the bytes of a step of each codec."""
        for loop in self.loops.values():
            if loop.handle is not None:
                loop.handle.detach()
        self.loops = {method: Loop(method) for method in methods}
        sent = {}
        for method, loop in self.loops.items():
            for _ in range(SETTLED):
                loop.step()
            if loop.handle is not None:
                loop.handle.metrics(reset=True)
                for _ in range(2):
                    loop.step()
                sent[method] = float(loop.handle.metrics()["wire_bytes"])
        return sent

    def steps(self, method: str, count: int) -> dict[str, float]:
        return {"seconds": self.loops[method].timed(count)}

    def profile(self) -> dict[str, Any]:
        """Return the middle one of some steps without any exchange.

        ``applying`` is by how much the optimizer that applies updates of a codec takes longer.
        """
        if self.plain is None:
            self.plain = Loop("")
        loop = self.plain
        group = {"params": list(loop.model.parameters()), "corrected": True}
        applier = optim.AdamW([group], lr=1e-3)
        rest, applied = list[float](), list[float]()
        for _ in range(PROFILED):
            for optimizer, taken in ((loop.optimizer, rest), (applier, applied)):
                with loop.model.no_sync():
                    loop.model(loop.input).square().mean().backward()
                dist.barrier()
                start = time.perf_counter()
                optimizer.step()
                optimizer.zero_grad()
                taken.append(time.perf_counter() - start)

        def train() -> None:
            loop.model(loop.input).square().mean().backward()

        found = cost.measure_workload(loop.model, train, steps=PROFILED, optimizer=median(rest))
        return asdict(found) | {"applying": max(0.0, median(applied) - median(rest))}

    def link(self, seconds: float) -> dict[str, float]:
        return asdict(cost.measure_link(seconds=seconds))

    def calibrate(self, methods: Sequence[str], seconds: float) -> dict[str, Any]:
        dist.barrier()  # all ranks at once, as in training
        return calibrate({name: codec(name) for name in methods}, seconds=seconds).to_json()


def main(setup: dict[str, Any]) -> None:
    """Join the other ranks, and do what each line of standard input says."""
    say = join(setup, seconds=300)
    say()
    obey(Commands(), say)


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
