"""What a step costs besides encoding: 300 layers of 40 x 40 on two ranks, beside plain DDP.

``python -m benches.layers`` prints the processor time per step of one rank, all threads together,
as medians of interleaved blocks, and the calls of gradwire's Python functions per step.
"""

import collections
import statistics
import sys
import threading
import time
import warnings
from contextlib import closing
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import gradwire
import gradwire.torch.ddp
from benches.harness.link import Link
from benches.harness.processes import Ranks
from benches.harness.rank_process import form_group

LAYERS, WIDTH, BLOCKS, STEPS = 300, 40, 15, 10
PACKAGE = str(Path(gradwire.__file__).parent)


class Residual(nn.Module):
    """Layers whose outputs are added, so that no gradient vanishes."""

    def __init__(self, layers: int) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(layers))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = x + 0.1 * layer(x)
        return x


def loop(layers: int, *, coded: bool) -> Any:
    torch.manual_seed(0)
    model = DistributedDataParallel(Residual(layers))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    if coded:
        gradwire.torch.ddp.attach(model, gradwire.adam(0.01), optimizer=optimizer)
    inputs = torch.randn(8, WIDTH, generator=torch.Generator().manual_seed(dist.get_rank()))

    def train(steps: int) -> None:
        for _ in range(steps):
            optimizer.zero_grad()
            model(inputs).square().mean().backward()
            optimizer.step()

    train(150)  # until limits of frames are known and no ratio is measured in every step
    return train


def measure() -> list[str]:
    warnings.simplefilter("ignore")
    calls: collections.Counter[bool] = collections.Counter()

    def count(frame: Any, event: str, _: object) -> None:
        calls[event == "call" and frame.f_code.co_filename.startswith(PACKAGE)] += 1

    times: dict[bool, list[float]] = {False: [], True: []}
    loops = {coded: loop(LAYERS, coded=coded) for coded in times}
    for _ in range(BLOCKS):
        for coded, train in loops.items():
            start = time.process_time()
            train(STEPS)
            times[coded].append(1e3 * (time.process_time() - start) / STEPS)
    threading.setprofile(count)  # of the threads of the next attachment
    train = loop(4, coded=True)
    sys.setprofile(count)
    calls.clear()
    train(16 * STEPS)
    sys.setprofile(None)
    plain, coded_ms = (statistics.median(times[coded]) for coded in (False, True))
    return [
        f"{LAYERS} layers, ms of processor time per step",
        f"plain DDP {plain:.1f}, adam(0.01) {coded_ms:.1f}: {coded_ms - plain:+.1f}",
        f"4 layers, one bucket: {calls[True] / 16 / STEPS:.0f} Python calls per step",
    ]


def join(setup: dict[str, Any], say: Any) -> Any:
    """Join the other rank, and return the command that both take."""
    form_group(setup)
    return SimpleNamespace(measure=measure)


if __name__ == "__main__":
    with closing(Ranks(Link(), 2, "benches.layers")) as ranks:
        ranks.ready()
        print("\n".join(ranks.ask(do="measure")[0]))
