"""The process of one rank: what each line on its standard input asks for."""

import json
import os
import sys
import time
import warnings
from collections.abc import Callable
from dataclasses import asdict
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
from torch.nn.parallel import DistributedDataParallel

import gradwire
from gradwire.cost import calibrate
from gradwire.torch import cost, ddp

LAYERS, WIDTH, BATCH = 8, 1024, 64
NUMEL = LAYERS * WIDTH**2
BUCKET_MB = 8
PAUSE = 0.05  # seconds for the queues of the link to run empty

CODECS: dict[str, Callable[[], gradwire.Codec]] = {
    "topk": lambda: gradwire.topk(ratio=0.01),
    "sidco": lambda: gradwire.sidco(ratio=0.01),
    "scalecom": lambda: gradwire.scalecom(ratio=0.01),
    "onebit": gradwire.onebit,
    "powersgd": gradwire.powersgd,
}
METHODS = ("fp32", "bf16", *CODECS)


def _half(group: Any, bucket: Any) -> Any:
    # torch's own hook. DDP tells it by its name and refuses that on builds without NCCL.
    return default_hooks.bf16_compress_hook(group, bucket)


_half.__annotations__.clear()  # DDP insists that annotations, if there are any, are its own


class Loop:
    """A model that trains with one method."""

    def __init__(self, method: str) -> None:
        torch.manual_seed(0)
        layers = [
            part for _ in range(LAYERS) for part in (nn.Linear(WIDTH, WIDTH, bias=False), nn.ReLU())
        ]
        self.model = DistributedDataParallel(
            nn.Sequential(*layers), bucket_cap_mb=BUCKET_MB, gradient_as_bucket_view=True
        )
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=1e-3)
        self.input = torch.randn(BATCH, WIDTH)
        self.ready: list[tuple[float, int]] = []
        self.began = 0.0
        if method == "compute":
            self.model.register_comm_hook(self.ready, self._note)
        elif method == "bf16":
            self.model.register_comm_hook(None, _half)
        elif method in CODECS:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", ddp.PairingWarning)
                ddp.attach(self.model, CODECS[method]())

    def _note(self, state, bucket):  # type: ignore[no-untyped-def]
        """Write down when a bucket is ready, and exchange nothing."""
        self.ready.append((time.perf_counter() - self.began, bucket.buffer().numel()))
        future: torch.futures.Future[torch.Tensor] = torch.futures.Future()
        future.set_result(bucket.buffer())
        return future

    def step(self) -> dict[str, Any]:
        """Return the seconds of a step and of its backward pass."""
        self.ready.clear()
        time.sleep(PAUSE)
        dist.barrier()
        start, worked = time.perf_counter(), time.process_time()
        loss = self.model(self.input).square().mean()
        self.began = time.perf_counter()
        loss.backward()
        end = time.perf_counter()
        self.optimizer.step()
        self.optimizer.zero_grad()
        return {
            "seconds": time.perf_counter() - start,
            "cpu": time.process_time() - worked,
            "backward": end - self.began,
            "ready": [at for at, _ in self.ready],
            "buckets": [numel for _, numel in self.ready],
        }


class Commands:
    """What the parent can ask for."""

    def __init__(self) -> None:
        self.loops = {method: Loop(method) for method in ("compute", *METHODS)}
        for loop in self.loops.values():
            for _ in range(4):  # DDP rebuilds its buckets, and codecs learn their sizes
                loop.step()

    def step(self, method: str) -> dict[str, Any]:
        return self.loops[method].step()

    def profile(self, steps: int) -> dict[str, Any]:
        """Return steps without any exchange."""
        return {"steps": [self.loops["compute"].step() for _ in range(steps)]}

    def link(self, seconds: float) -> dict[str, float]:
        return asdict(cost.measure_link(seconds=seconds))

    def calibrate(self, seconds: float) -> dict[str, Any]:
        dist.barrier()  # all ranks at once, as in training
        return calibrate({name: make() for name, make in CODECS.items()}, seconds=seconds).to_json()


def main(setup: dict[str, Any]) -> None:
    """Join the other ranks, and do what each line of standard input says."""
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # answers keep the pipe to themselves
    torch.set_num_threads(1)
    gradwire.set_num_threads(1)
    # A file, not a port: it reaches across namespaces.
    dist.init_process_group(
        "gloo",
        init_method=f"file://{setup['folder']}/store",
        rank=setup["rank"],
        world_size=setup["ranks"],
        timeout=timedelta(seconds=300),
    )
    commands = Commands()
    print(json.dumps({"methods": METHODS}), file=answers, flush=True)
    for line in sys.stdin:
        command = json.loads(line)
        answer = getattr(commands, command.pop("do"))(**command)
        print(json.dumps(answer), file=answers, flush=True)


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
