"""The process of one rank: a network of 8.4 M parameters that trains with each method."""

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
from benches.harness.rank_process import form_group
from benches.harness.tasks import half_hook
from gradwire.cost import calibrate
from gradwire.presets import PRESETS
from gradwire.schedule import Constant
from gradwire.torch import cost, ddp, optim

LAYERS, WIDTH, BATCH, BUCKET_MB = 8, 1024, 64, 8.0
NUMEL = LAYERS * WIDTH**2
RATIO, THRESHOLD = 0.01, 1e-3
PAUSE = 0.05  # seconds for the queues of the link to run empty
PROFILED = 5  # steps without any exchange, in each turn
SETTLED = 6  # steps until DDP has rebuilt its buckets, and codecs know their sizes

DENSE = ("fp32", "bf16")
METHODS = (*DENSE, *PRESETS)

RATIOS = (0.1, 0.05, 0.02, 0.01)
BY_HAND = {f"adam({ratio:g})": gradwire.adam(ratio=ratio) for ratio in RATIOS}
"""The codecs beside which `auto` trains, with the last one as its own."""


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
    """A model that trains with a codec, or with one of `DENSE`, "auto", or "": no exchange.

    The optimizer is SGD, or AdamW where the codec needs it or ``adam`` asks for it.
    """

    def __init__(
        self,
        method: str | gradwire.Codec,
        *,
        adam: bool = False,
        layers: int = LAYERS,
        width: int = WIDTH,
        bucket_mb: float = BUCKET_MB,
        min_ratio: float = RATIOS[-1],
    ) -> None:
        torch.manual_seed(0)
        parts = (nn.Linear(width, width, bias=False) for _ in range(layers))
        self.model = DistributedDataParallel(
            nn.Sequential(*(part for each in parts for part in (each, nn.ReLU()))),
            bucket_cap_mb=bucket_mb,
            gradient_as_bucket_view=True,
        )
        self.input = torch.randn(BATCH, width)
        self.handle: ddp.Handle | None = None
        parameters = self.model.parameters()
        updates = isinstance(method, gradwire.Codec) and method.memory.updates
        self.optimizer: torch.optim.Optimizer = torch.optim.SGD(parameters, lr=1e-3)
        options: dict[str, Any] = {}
        if adam or updates:  # steps are sent, which no other optimizer applies
            self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-4, fused=True)
            options = {"optimizer": self.optimizer, "schedule": Constant()}
        if method == "bf16":
            self.model.register_comm_hook(None, half_hook)
        elif method == "auto":
            self.handle = ddp.attach(self.model, "auto", min_ratio=min_ratio, **options)
        elif isinstance(method, gradwire.Codec):
            self.handle = ddp.attach(self.model, method, **options)

    def step(self) -> float:
        """Train on the same batch once more; return the seconds."""
        start = time.perf_counter()
        self.model(self.input).square().mean().backward()
        self.optimizer.step()
        self.optimizer.zero_grad()
        return time.perf_counter() - start


class Commands:
    """What the parent can ask for."""

    def __init__(self) -> None:
        self.loops: dict[str, Loop] = {}
        self.plain: Loop | None = None

    def _renew(self, make: Callable[[], dict[str, Loop]]) -> None:
        for loop in self.loops.values():
            if loop.handle is not None:
                loop.handle.detach()
        self.loops = make()

    def use(self, methods: Sequence[str]) -> dict[str, float]:
        self._renew(
            lambda: {name: Loop(name if name in DENSE else codec(name)) for name in methods}
        )
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

    def begin(self, methods: Sequence[str], **options: Any) -> None:
        self._renew(
            lambda: {each: Loop(BY_HAND.get(each, each), adam=True, **options) for each in methods}
        )

    def timed(self, method: str, count: int) -> float:
        """Return the seconds of a step: of so many in a row after a pause, and after one more."""
        time.sleep(PAUSE)
        dist.barrier()
        loop = self.loops[method]
        loop.step()  # after a pause, and after one of another model: training has neither
        start = time.perf_counter()
        for _ in range(count):
            loop.step()
        return (time.perf_counter() - start) / count

    def steps(self, method: str, count: int) -> dict[str, Any]:
        loop = self.loops[method]
        dist.barrier()
        seconds = [loop.step() for _ in range(count)]
        decision = None
        if method == "auto":
            assert loop.handle is not None
            decision = loop.handle.report(residuals=False).decision
        return {"seconds": seconds, "decision": decision}

    def profile(self) -> dict[str, Any]:
        """Return the middle one of some steps without any exchange.

        ``applying`` is by how much the optimizer that applies updates of a codec takes longer.
        """
        if self.plain is None:
            self.plain = Loop("")
        loop = self.plain
        group = {"params": list(loop.model.parameters()), "corrected": True}
        applier = optim.adapt(torch.optim.AdamW([group], lr=1e-3))
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


def join(setup: dict[str, Any], say: Any) -> Commands:
    warnings.simplefilter("ignore")
    form_group(setup)
    return Commands()
