"""Decisions on real ranks of Horovod, scripted."""

import os
import signal
from datetime import timedelta
from typing import Any

import horovod.common.exceptions as hvd_errors
import numpy as np
import torch

import gradwire.torch.horovod as gh
from gradwire.torch.auto import controller as pilot
from gradwire.torch.transport.horovod import library
from tests.distributed.scenarios.common import (
    SHAPES,
    Given,
    fingerprint,
    gradients_of,
    integers,
    residuals,
)
from tests.distributed.scripted import CODEC, UNCOMPRESSED, mode_of, ratios, scripted
from tests.horovod.scenarios.training import Run

MIN = {"min_ratio": 0.05}


class Auto(Run):
    """A small model under "auto"."""

    def __init__(self, *arguments: Any, wrap: dict[str, Any] | None = None, **options: Any) -> None:
        super().__init__("auto", *arguments, wrap={"groups": 3, **(wrap or {})}, **options)

    @property
    def pilot(self) -> pilot.AutoController:
        deciding = self.handle._passes.auto
        assert isinstance(deciding, pilot.AutoController)
        return deciding


def switching(rank: int, world_size: int, *, passes: int, spoiled: bool) -> dict[str, Any]:
    """Integers, so that sums are exact: in and out of the codec, whole and in part."""
    given = {name: np.zeros(int(np.prod(shape))) for name, shape in SHAPES.items()}
    applied = {name: np.zeros_like(zero) for name, zero in given.items()}
    found: dict[str, Any] = {"modes": [], "left": [], "averages": [], "errors": []}
    wrap = {"backward_passes_per_step": passes, "groups": 5, **MIN}
    with scripted(CODEC, UNCOMPRESSED, CODEC, UNCOMPRESSED):
        run = Auto(model=Given(), lr=0.0, wrap=wrap)
        for step in range(30 if spoiled else 18):
            given_now = [integers(31, rank, passes * step + each) for each in range(passes)]
            dropped = spoiled and step % 3 == 2
            if dropped and step % 2 and rank == 1:
                given_now[-1]["a"][3, 4] = torch.nan
            run.optimizer.zero_grad()
            for gradients in given_now:
                run.model(gradients).backward()
            before = run.handle.error
            run.optimizer.synchronize()
            found["modes"].append(mode_of(run.handle))
            if (error := run.handle.error) is not before:
                assert isinstance(error, gh.GradientError)
                found["errors"].append((step, error.name, error.rank))
            if dropped:  # no step: what was sent must come back
                continue
            averages = gradients_of(run.model)
            with run.optimizer.skip_synchronize():
                run.optimizer.step()
            for name in SHAPES:
                given[name] += sum(each[name].numpy().ravel() for each in given_now)
                applied[name] += averages[name] * world_size
            found["averages"].append(averages)
            found["left"].append({key: each.any() for key, each in residuals(run.handle).items()})
        found["final"] = residuals(run.handle)
        run.end()
    return {**found, "given": given, "applied": applied}


def between_backward_and_step(rank: int, world_size: int) -> dict[str, Any]:
    """Add up a loss where one rank has still to exchange its first bucket.

    Ranks that waited for each other in different places would fail.
    """
    names, losses, modes = list(SHAPES), [], []
    with scripted(CODEC, UNCOMPRESSED):
        wrap = {"groups": 5, "timeout": timedelta(seconds=60), **MIN}
        run = Auto(model=Given(), lr=1.0, wrap=wrap)
        for step in range(12):
            used = names[:-1] if step % 3 and rank == 1 else names
            run.optimizer.zero_grad()
            run.model(integers(7, rank, step, used)).backward()
            loss = library.allreduce(torch.ones(1), op=library.Sum, name="loss")
            losses.append(loss.item() / world_size)
            run.optimizer.step()
            modes.append(mode_of(run.handle))
        return {"modes": modes, "losses": losses, "print": run.end()}


def elastic(rank: int, world_size: int) -> dict[str, Any]:
    """Commit, go on, return to the commit and meet again: decisions begin anew."""
    with scripted(CODEC, UNCOMPRESSED):
        run = Auto(wrap=MIN).train(rank, range(5))
        state = gh.ElasticState(model=run.model, optimizer=run.optimizer, at=5)
        state.commit()
        before, prints = ratios(run.handle), fingerprint(run.model)
        pilots = [run.pilot]
        run.train(rank, range(5, 8))
        meanwhile = ratios(run.handle)
        state.restore()
        state.sync()
        run.handle = run.optimizer.handle
        pilots.append(run.pilot)
        found = {
            "back": fingerprint(run.model) == prints,
            "before": before,
            "meanwhile": meanwhile,
            "after": ratios(run.handle),
            "anew": pilots[0] is not pilots[1],
        }
        run.train(rank, range(5, 8))
        return found | {"print": run.end()}


def lost(rank: int, world_size: int) -> dict[str, Any]:
    """Rank 1 is killed before a look, in which the other one waits for it."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)  # horovodrun ends the others, too
    said = []
    with scripted(CODEC):
        run = Auto()
        run.train(rank, range(2))  # the next step ends with a look
        if rank == 1:  # it has averaged its gradients by then
            run.pilot._look = lambda: os.kill(  # type: ignore[method-assign]
                os.getpid(), signal.SIGKILL
            )
        for _ in range(2):
            try:
                run.train(rank, range(1))
            except Exception as error:
                internal = isinstance(error, hvd_errors.HorovodInternalError)
                said.append((type(error).__name__, str(error), internal))
                run.optimizer.zero_grad()
        looked = run.pilot._looks
        run.handle.detach()
    return {"said": said, "looked": looked}
