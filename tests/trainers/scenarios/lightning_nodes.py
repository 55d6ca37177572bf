"""Lightning's Trainers on two nodes of two ranks, and one whose other rank is gone."""

import os
import signal
import warnings
from typing import Any

import torch
from lightning.pytorch.callbacks import OnExceptionCheckpoint
from torch import nn, optim
from torch.nn.parallel import DistributedDataParallel

from gradwire.torch import ddp
from gradwire.torch.lightning import Compress
from tests.distributed.scenarios.common import batch, fingerprint, network
from tests.trainers.scenarios.lightning import ADAM, Looking, Regression, trainer


def nodes(rank: int, world_size: int, folder: str) -> dict[str, Any]:
    """Train as two nodes of two; resume so, and without nodes."""
    found: dict[str, Any] = {}
    looped = network()
    model = DistributedDataParallel(looped)
    optimizer = optim.AdamW(model.parameters(), lr=2e-3)
    handle = ddp.attach(model, ADAM, optimizer=optimizer, hierarchy=2)
    for step in range(12):
        inputs, targets = batch(rank, step)
        optimizer.zero_grad()
        nn.functional.mse_loss(model(inputs), targets).backward()
        optimizer.step()
    handle.detach()

    def run(name: str, checkpoint: str | None = None, **options: Any) -> Any:
        options = {"hierarchy": "node"} | options
        module, callback = Regression(optim.AdamW, lr=2e-3), Compress(ADAM, **options)
        looking = Looking(callback)
        epochs = 1 if checkpoint is None else 2
        chosen = {"devices": 2, "num_nodes": 2, "max_epochs": epochs}
        made = trainer(rank, world_size, callback, looking, **chosen)
        made.fit(module, ckpt_path=checkpoint)
        assert callback.handle is not None
        found[name] = fingerprint(module if checkpoint else module.net)
        found[f"{name}, per node"] = callback.handle.ranks_per_node
        found[f"{name}, mass"] = _mass(looking.states)
        return made

    found["looped"] = fingerprint(looped)
    run("trained").save_checkpoint(f"{folder}/one.ckpt")
    files = f"{folder}/files"
    run("in files", checkpoints=files).save_checkpoint(f"{folder}/two.ckpt")
    run("resumed", f"{folder}/one.ckpt", hierarchy=2)
    run("resumed from files", f"{folder}/two.ckpt", checkpoints=files)
    run("flat", f"{folder}/one.ckpt", hierarchy=None)
    run("flat from files", f"{folder}/two.ckpt", hierarchy=None, checkpoints=files)
    return found


def _mass(states: dict[str, Any]) -> float:
    """What all ranks are still to send of one weight."""
    whole = states["rank0"]["residual"]["net.0.weight"].shape[0] == 96
    total = sum(float(each["residual"]["net.0.weight"].double().sum()) for each in states.values())
    return total if whole else 2 * total


def lost(rank: int, world_size: int, folder: str) -> dict[str, Any]:
    """A rank is killed in a step; the other one writes a checkpoint of the exception."""

    class Lost(Regression):
        def training_step(self, indices: Any, index: int) -> torch.Tensor:
            if index == 6 and rank == 1:
                os.kill(os.getpid(), signal.SIGKILL)
            return super().training_step(indices, index)

    raised = ""
    made = trainer(rank, world_size, Compress(ADAM), OnExceptionCheckpoint(folder))
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        try:
            made.fit(Lost(optim.AdamW, lr=2e-3))
        except Exception as error:
            raised = f"{type(error).__name__} {type(error.__context__).__name__}"
    said = [str(each.message) for each in seen if each.category is RuntimeWarning]
    return {"raised": raised, "said": said}


def found_again(rank: int, world_size: int, folder: str) -> dict[str, Any]:
    """Resume from the checkpoint that `lost` has left."""
    module, callback = Regression(optim.AdamW, lr=2e-3), Compress(ADAM)
    made = trainer(rank, world_size, callback)
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        made.fit(module, ckpt_path=f"{folder}/on_exception.ckpt")
    assert callback.handle is not None
    said = [str(each.message) for each in seen if each.category is RuntimeWarning]
    return {"steps": callback.handle.step, "said": said, "print": fingerprint(module)}
