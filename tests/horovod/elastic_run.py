"""What an elastic run trains; it changes its own hosts on the way. See `test_elastic`."""

import json
import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

import horovod.torch as hvd
import torch
from torch import nn

import gradwire
import gradwire.torch.horovod as gh
from tests.distributed.scenarios.common import batch, fingerprint, network, residuals

HOSTS = ("localhost", "127.0.0.1", os.uname().nodename)
"""Three names of this machine, each with room for one rank."""
PHASES: list[tuple[str, ...]] = [HOSTS[:2], HOSTS, (HOSTS[0], HOSTS[2]), HOSTS[:1]]
"""The hosts of one part of the run after another; the last change is a death."""
BATCHES = 2
"""Batches of each part, at least."""


def write_hosts(folder: Path, hosts: tuple[str, ...]) -> None:
    """Say which hosts there are, to the script that Horovod asks every second."""
    draft = folder / "draft"
    draft.write_text("".join(f"{each}:1\n" for each in hosts))
    draft.replace(folder / "hosts")


def total(handle: Any) -> tuple[float, float]:
    """Return a projection of this rank's residuals, and the sum of all ranks' ones."""
    parts = [torch.from_numpy(each.astype("f8")) for _, each in sorted(residuals(handle).items())]
    flat = torch.cat(parts)
    mine = flat @ torch.linspace(-1.0, 1.0, flat.numel(), dtype=torch.float64)
    return mine.item(), hvd.allreduce(mine, op=hvd.Sum, name="total").item()


def main(folder: Path) -> None:
    """Train in four phases, and log what there is before and after every change of ranks."""
    hvd.init()
    torch.set_num_threads(1)
    host = os.environ["HOROVOD_HOSTNAME"]
    model = network(os.getpid())  # of a new rank, it is to be replaced
    optimizer = gh.DistributedOptimizer(
        torch.optim.SGD(model.parameters(), lr=0.05),
        model.named_parameters(),
        codec=gradwire.topk(ratio=0.05),
    )

    def log(what: str, state: Any, **more: Any) -> None:
        mine, every = total(optimizer.handle)
        found = {"what": what, "host": host, "size": hvd.size(), "batch": state.batch}
        found |= {"mine": mine, "total": every, "print": fingerprint(model), **more}
        found["step"] = optimizer.handle.step
        with (folder / "log").open("a") as file:
            file.write(json.dumps(found) + "\n")

    @hvd.elastic.run  # type: ignore[untyped-decorator]
    def train(state: Any) -> None:
        log("enters", state)
        phase = [len(each) for each in PHASES].index(hvd.size()) if hvd.size() != 2 else None
        if phase is None:
            phase = 0 if state.batch < BATCHES else 2
        while phase < len(PHASES) - 1 or state.batch < BATCHES * len(PHASES):
            optimizer.zero_grad()
            inputs, targets = batch(hvd.rank(), state.batch)
            nn.functional.mse_loss(model(inputs), targets).backward()
            optimizer.step()
            state.batch += 1
            if state.batch >= BATCHES * (phase + 1) and phase < len(PHASES) - 1:
                if phase == 2 and host == HOSTS[2]:
                    os.kill(os.getpid(), signal.SIGKILL)
                if phase < 2 and hvd.rank() == 0:
                    write_hosts(folder, PHASES[phase + 1])
                time.sleep(0.3)
            log("commits", state)
            state.commit()

    state = gh.ElasticState(model=model, optimizer=optimizer, batch=0)
    train(state)
    log("ends", state)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
