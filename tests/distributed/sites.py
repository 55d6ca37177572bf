"""Sites of a training whose ranks come and go, each a process of its own."""

import hashlib
import subprocess
import sys
import time
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
from torch import nn

import gradwire
from gradwire.torch import diloco
from gradwire.torch.transport.store import stores
from tests.distributed.scenarios.common import batch, bits, network

SHARED = {"inner_steps": 2, "outer_lr": 1.0, "outer_momentum": 0.0, "min_numel": 65}
"""With these, shared parameters move by the mean of what is decoded, and by nothing else."""

STREAMING = {"inner_steps": 4, "fragments": 2, "delay": 3, "outer_momentum": 0.5}

LIMIT = 120.0
"""Seconds for what takes one or two on an idle machine, beside the timeouts that are tested."""


class Site:
    """A rank with its model and optimizer, and what it notes of every round."""

    def __init__(
        self, number: int, members: diloco.Membership, load: Any = None, **options: Any
    ) -> None:
        self.number = number
        self.model = network(seed=number)  # other parameters on each rank
        if load is not None:
            self.model.load_state_dict(load)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.02)
        options = {"codec": gradwire.topk(0.1), **SHARED, **options}
        self.outer = diloco.DiLoCo(self.model, membership=members, **options)
        self.rounds: dict[int, str] = {}
        self.sizes: dict[int, int] = {}
        self.made = 0

    def step(self) -> None:
        """One inner step, with new data."""
        inputs, targets = batch(self.number, self.made)
        self.made += 1
        self.optimizer.zero_grad()
        nn.functional.mse_loss(self.model(inputs), targets).backward()
        self.optimizer.step()
        self.outer.step()
        self.rounds[self.outer.rounds] = self.common()
        self.sizes[self.outer.rounds] = self.outer.world_size
        time.sleep(0.01)  # leave the processor to the other ranks

    def until(self, condition: Callable[[], bool], limit: float = LIMIT) -> None:
        """Train until something holds."""
        deadline = time.monotonic() + limit
        while not condition():
            assert time.monotonic() < deadline, "it took too long"
            self.step()

    def round(self, number: int) -> None:
        """Train up to a round."""
        self.until(lambda: self.outer.rounds >= number)

    def kind(self, kind: str) -> dict[str, torch.Tensor]:
        """One kind of tensors in this rank's checkpoint."""
        ((_, saved),) = self.outer.state_dict().items()
        tensors: dict[str, torch.Tensor] = saved[kind]
        return tensors

    def common(self) -> str:
        """The bits of the parameters that all ranks share, with the outer momentum."""
        shared = self.outer._replica.shared()
        return hashlib.sha256(b"".join(bits(each) for each in shared)).hexdigest()

    def mass(self) -> dict[str, torch.Tensor]:
        """What is still to be sent: the residual, and the moves since the last exchange."""
        own = dict(self.model.named_parameters())
        shared, residual = self.kind("shared"), self.kind("residual")
        return {name: shared[name] - own[name].detach() + residual[name] for name in residual}


def members_of(folder: Path, **options: Any) -> diloco.Membership:
    """A membership over a file that all ranks share."""
    options = {"timeout": timedelta(seconds=30), **options}
    return diloco.Membership(stores.FileStore(f"{folder}/store", -1), **options)


def serving(address: Path, host: str = "127.0.0.1") -> "subprocess.Popen[str]":
    """Serve a store in a process of its own, as users do, and write where."""
    command = [sys.executable, "-m", "gradwire.torch.diloco", "0", "--host", host]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    port = process.stdout.readline().split()[-1]
    unfinished = address.with_suffix(".unfinished")
    unfinished.write_text(f"{host}:{port}")
    unfinished.rename(address)
    return process
