"""The process of one rank: DDP with each method of the study, as real ranks train with it."""

import gc
import itertools
import time
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.algorithms.ddp_comm_hooks import debugging_hooks
from torch.distributed.algorithms.ddp_comm_hooks.powerSGD_hook import powerSGD_hook
from torch.nn.parallel import DistributedDataParallel

from benches.accuracy.methods import ADAMW
from benches.accuracy.pool import make_task
from benches.compare.contestants import POWER, power_state
from benches.harness.rank_process import form_group
from benches.harness.tasks import half_hook
from gradwire.schedule import Constant
from gradwire.torch import ddp

from . import plan

LAYERS, WIDTH, ROWS = 24, 1024, 256
PAUSE = 0.05  # seconds for the queues of the link to run empty
BATCHES = 4
WARM = 4  # steps: DDP rebuilds its buckets, PowerSGD begins, codecs learn their sizes
RATE = 1e-6  # nobody looks at the weights of a model that is only timed
AUTO = "auto"
"""The method that measures and decides, and the model of 8.4 M parameters that shows it."""
WHOLE = 128.0
"""MiB that hold all of any model: torch's PowerSGD hook hangs on Gloo with two buckets."""


class Network(nn.Module):
    """Square layers with ReLU between them: 25.2 M parameters."""

    def __init__(self, weights: Tensor) -> None:
        super().__init__()
        self.layers = nn.ParameterList(nn.Parameter(weight) for weight in weights)

    def forward(self, x: Tensor) -> Tensor:
        for weight in self.layers:
            x = nn.functional.relu(nn.functional.linear(x, weight))
        return x


class Large:
    """A model on rows that are drawn at random, by default as large as a ResNet-50.

    Every rank has 256 rows a step, so about 40 GFLOP. Only its time is of interest: all models
    share their weights, which saves memory.
    """

    def __init__(self, layers: int = LAYERS, rows: int = ROWS, width: int = WIDTH) -> None:
        torch.manual_seed(0)
        self._weights = torch.randn(layers, width, width).mul_((2 / width) ** 0.5)
        self._shape = rows, width

    def model(self, seed: int) -> nn.Module:
        return Network(self._weights)

    def batches(self, rank: int, ranks: int, seed: int) -> Iterator[tuple[Tensor, ...]]:
        while True:
            yield torch.randn(self._shape), torch.randn(self._shape)

    def loss(self, model: nn.Module, batch: tuple[Tensor, ...]) -> Tensor:
        rows, targets = batch
        return nn.functional.mse_loss(model(rows), targets)


def timed(name: str, data: str | None) -> Any:
    """Return a task to time: the clicks need few rows for that."""
    if name == plan.LARGE:
        return Large()
    if name == AUTO:
        return Large(8, 64)
    if name == "clicks":
        from benches.accuracy.tasks.clicks import Clicks

        return Clicks(1 << 13, 1 << 9)
    return make_task(name, None if data is None else Path(data))


def shares(task: Any, rank: int, ranks: int) -> Iterator[tuple[Tensor, ...]]:
    """Yield a rank's share of every global batch; some ranks have a row more than others."""
    if isinstance(task, Large):
        yield from task.batches(rank, ranks, 0)
    for batch in task.batches(0, 1, 0):
        yield tuple(each[rank::ranks].contiguous() for each in batch)


class Loop:
    def __init__(
        self, module: nn.Module, method: str, bucket: float | None, **options: Any
    ) -> None:
        whole = WHOLE if method == plan.TORCH_POWER else bucket
        self.model = DistributedDataParallel(
            module, bucket_cap_mb=whole, gradient_as_bucket_view=True
        )
        codec = plan.CODECS.get(method)
        self.moments = codec is None or not codec.memory.updates  # are the optimizer's
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=RATE, fused=True, **ADAMW)
        self.handle: Any = None
        if method == plan.NONE:
            self.model.register_comm_hook(None, debugging_hooks.noop_hook)
        elif method == plan.BF16:
            self.model.register_comm_hook(None, half_hook)
        elif method == plan.TORCH_POWER:
            self.model.register_comm_hook(power_state(None, POWER), powerSGD_hook)
        elif codec is not None or method == AUTO:
            options |= {"optimizer": self.optimizer, "schedule": Constant()}
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", ddp.PairingWarning)
                self.handle = ddp.attach(self.model, codec or "auto", **options)

    def step(self, task: Any, batch: tuple[Tensor, ...]) -> None:
        self.optimizer.zero_grad()
        task.loss(self.model, batch).backward()
        self.optimizer.step()


class Commands:
    def __init__(self, rank: int, ranks: int) -> None:
        self._rank, self._ranks = rank, ranks
        self._loops: dict[str, Loop] = {}
        self._task: Any = None
        self._batches: list[Any] = []

    def load(
        self, section: str, contestants: list[tuple[str, str, float | None]], data: str | None
    ) -> None:
        """Make the models of contestants of a section, in place of those before."""
        for loop in self._loops.values():
            if loop.handle is not None:
                loop.handle.detach()
        self._loops.clear()
        gc.collect()
        self._task = timed(section, data)
        self._batches = list(itertools.islice(shares(self._task, self._rank, self._ranks), BATCHES))
        states: list[dict[str, Any]] = []
        for name, method, bucket in contestants:
            loop = Loop(self._task.model(0), method, bucket)
            for _ in range(0 if method == AUTO else WARM):  # its first steps are timed
                loop.step(self._task, self._batches[0])
            if section == plan.LARGE and loop.moments:
                _share(loop.optimizer, states)
            self._loops[name] = loop

    def step(self, contestant: str, steps: int) -> float:
        """Return the seconds of a step, over so many after a pause."""
        time.sleep(PAUSE)
        loop = self._loops[contestant]
        dist.barrier()
        began = time.perf_counter()
        for batch in itertools.islice(itertools.cycle(self._batches), steps):
            loop.step(self._task, batch)
        return (time.perf_counter() - began) / steps

    def steps(self, contestant: str, count: int) -> dict[str, Any]:
        """Return the seconds of each step, and what ``auto`` says of its decision."""
        loop, seconds = self._loops[contestant], []
        dist.barrier()
        for batch in itertools.islice(itertools.cycle(self._batches), count):
            began = time.perf_counter()
            loop.step(self._task, batch)
            seconds.append(time.perf_counter() - began)
        decision = None
        if contestant == AUTO:
            decision = loop.handle.report(residuals=False).decision
        return {"seconds": seconds, "decision": decision}


def _share(optimizer: torch.optim.Optimizer, kept: list[dict[str, Any]]) -> None:
    """Let all optimizers of the large model have one state: only their time is of interest."""
    parameters = [each for group in optimizer.param_groups for each in group["params"]]
    if not kept:
        kept += [optimizer.state[each] for each in parameters]
        return
    for parameter, state in zip(parameters, kept, strict=True):
        optimizer.state[parameter] = state


def join(setup: dict[str, Any], say: Any) -> Commands:
    form_group(setup)
    return Commands(setup["rank"], setup["ranks"])
