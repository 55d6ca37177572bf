"""The process of one rank: what each line on its standard input asks for."""

import json
import sys
import time
import warnings
from dataclasses import replace
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import gradwire
from benches.harness.half import half_hook
from benches.joining import join, obey
from gradwire.auto import OWNERS_FROM
from gradwire.exchange import ReduceScatter
from gradwire.schedule import Constant
from gradwire.torch import ddp
from gradwire.torch.ddp import Handle
from gradwire.torch.exchange.all_gather import AllGatherExchange

RATIOS = (0.1, 0.05, 0.02, 0.01)
OWNERS = " through owners"


def methods_for(ranks: int) -> tuple[str, ...]:
    """Return what ``auto`` chooses from among so many ranks, and ``auto``."""
    codecs = [f"adam({ratio:g})" for ratio in RATIOS]
    owned = [each + OWNERS for each in codecs] if ranks >= OWNERS_FROM else []
    return ("fp32", "bf16", *codecs, *owned, "auto")


class Loop:
    """A model that trains with one method.

    Parameters
    ----------
    method : str
        One of `methods_for`.
    layers, width : int
        Of the model.
    bucket_mb : float
    max_ratio : float
        For ``auto``.
    """

    def __init__(
        self, method: str, layers: int, width: int, bucket_mb: float, max_ratio: float
    ) -> None:
        torch.manual_seed(0)
        parts = [part for _ in range(layers) for part in (nn.Linear(width, width), nn.ReLU())]
        self.model = DistributedDataParallel(
            nn.Sequential(*parts), bucket_cap_mb=bucket_mb, gradient_as_bucket_view=True
        )
        self.optimizer = gradwire.torch.optim.AdamW(self.model.parameters(), lr=1e-4, fused=True)
        self.input = torch.randn(64, width)
        self.handle: Handle | None = None
        if method == "bf16":
            self.model.register_comm_hook(None, half_hook)
        elif method == "auto":
            self.handle = ddp.attach(
                self.model,
                "auto",
                optimizer=self.optimizer,
                max_ratio=max_ratio,
                schedule=Constant(),
            )
        elif method != "fp32":
            ratio = float(method.removesuffix(OWNERS).removeprefix("adam(").removesuffix(")"))
            codec = gradwire.adam(ratio=ratio)
            if method.endswith(OWNERS):
                codec = replace(codec, exchange=ReduceScatter())
            self.handle = ddp.attach(
                self.model, codec, optimizer=self.optimizer, schedule=Constant()
            )

    def step(self) -> float:
        """Return the seconds of a step."""
        start = time.perf_counter()
        self.model(self.input).square().mean().backward()
        self.optimizer.step()
        self.optimizer.zero_grad()
        return time.perf_counter() - start


class Commands:
    """What the parent can ask for."""

    def __init__(self) -> None:
        self.loops: dict[str, Loop] = {}

    def begin(
        self,
        methods: list[str],
        layers: int = 8,
        width: int = 1024,
        bucket_mb: float = 8.0,
        max_ratio: float = RATIOS[-1],
        slow: float = 0.0,
    ) -> dict[str, Any]:
        """Make new models; every encode takes ``slow`` more seconds, as on another processor."""
        for loop in self.loops.values():
            if loop.handle is not None:
                loop.handle.detach()
        if slow:
            _slow_down(slow)
        self.loops = {each: Loop(each, layers, width, bucket_mb, max_ratio) for each in methods}
        return {}

    def steps(self, method: str, count: int) -> dict[str, Any]:
        """Take so many steps."""
        loop = self.loops[method]
        dist.barrier()
        seconds = [loop.step() for _ in range(count)]
        found: dict[str, Any] = {"seconds": seconds}
        if method == "auto":
            assert loop.handle is not None
            found["decision"] = loop.handle.report(residuals=False).decision
            found["kinds"] = [each.kind for each in loop.handle._deciding.plan]  # type: ignore[union-attr]
        return found


def _slow_down(seconds: float) -> None:
    fill = AllGatherExchange._fill

    def slowly(*arguments: Any) -> None:
        time.sleep(seconds)
        fill(*arguments)

    AllGatherExchange._fill = slowly  # type: ignore[method-assign,assignment]


def main(setup: dict[str, Any]) -> None:
    """Join the other ranks, and do what each line of standard input says."""
    warnings.simplefilter("ignore")
    say = join(setup, seconds=600)
    say()
    obey(Commands(), say)


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
