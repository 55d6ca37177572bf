"""Decisions on real ranks of Horovod, scripted."""

import os
import signal
from datetime import timedelta
from typing import Any

import horovod.common.exceptions as hvd_errors
import numpy as np
import torch
from torch.optim import AdamW

import gradwire
import gradwire.torch.horovod as gh
from gradwire._auto import Setting
from gradwire.schedule import Accordion
from gradwire.torch.auto import controller as pilot
from gradwire.torch.transport.horovod import library
from tests.distributed.scenarios.auto import CODEC, UNCOMPRESSED, mode_of, ratios, scripted
from tests.distributed.scenarios.common import (
    SHAPES,
    Given,
    about,
    batch,
    fingerprint,
    gradients_of,
    integers,
    network,
    residuals,
)
from tests.horovod.scenarios.training import Run, apart

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


def plainly(rank: int, world_size: int) -> dict[str, Any]:
    """What stays dense, beside Horovod's own, and gradwire's once it is detached."""
    cases: dict[str, Any] = {
        "plain": {},
        "passes": {"backward_passes_per_step": 2},
        "groups": {"groups": 4},
        "predivide": {"gradient_predivide_factor": 4.0},
        "sum": {"op": library.Sum},
    }
    found: dict[str, Any] = {}
    for name, wrap in cases.items():
        kind = torch.optim.SGD if name == "sum" else AdamW
        own_kind = torch.optim.SGD if name == "sum" else torch.optim.AdamW
        passes = wrap.get("backward_passes_per_step", 1)
        wrap = {"groups": 3, **wrap}
        with scripted():
            auto = Auto(kind, lr=1e-3, wrap=wrap).train(rank, range(8), passes)
        dense = all(each is None for each in ratios(auto.handle).values())
        detached = Run(gradwire.topk(ratio=0.05), kind, lr=1e-3, wrap=wrap)
        detached.end()
        detached.train(rank, range(8), passes)
        own = Run(None, own_kind, lr=1e-3, wrap=wrap).train(rank, range(8), passes)
        found[name] = {
            "dense": dense,
            "steps": auto.handle.step,
            "own": apart(auto.model, own.model),
            "detached": apart(auto.model, detached.model),
        }
        auto.end()
    return found


def adam(rank: int, world_size: int) -> dict[str, Any]:
    """AdamW through all changes: replicas stay equal, and moments go to where they are needed."""
    found: dict[str, Any] = {"prints": [], "moments": [], "modes": []}
    with scripted(CODEC, UNCOMPRESSED, CODEC, UNCOMPRESSED):
        run = Auto(AdamW, lr=1e-2, wrap=MIN)
        weight = run.model.get_parameter("0.weight")
        for step in range(18):
            run.train(rank, range(step, step + 1))
            found["prints"].append(fingerprint(run.model))
            found["modes"].append(mode_of(run.handle))
            held = run.optimizer.state.get(weight)
            found["moments"].append(held and (float(held["step"]), held["exp_avg_sq"].sum().item()))
        run.end()
    return found


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


def adding(rank: int, world_size: int) -> dict[str, Any]:
    """Exchange twice in each step."""
    del world_size
    found: dict[str, Any] = {"modes": [], "prints": []}
    with scripted(CODEC):
        run = Auto(AdamW, lr=1e-2)
        for step in range(6):
            run.optimizer.zero_grad()
            for at in range(2):
                inputs, targets = batch(rank, 2 * step + at)
                torch.nn.functional.mse_loss(run.model(inputs), targets).backward()
                run.optimizer.synchronize()
            with run.optimizer.skip_synchronize():
                run.optimizer.step()
            found["modes"].append(mode_of(run.handle))
            found["prints"].append(fingerprint(run.model))
        run.end()
    return found


def resuming(rank: int, world_size: int, folder: str) -> dict[str, Any]:
    """Save with the codec in use, and go on: with auto, with a codec, and from one."""

    def trained(what: Any, steps: range, *script: Setting, start: Any = None) -> dict[str, Any]:
        with scripted(*script):
            wrap = MIN if what == "auto" else {}
            run = Run(what, wrap={"groups": 3, **wrap})
            if start is not None:
                run.model.load_state_dict(start["weights"])
                run.handle.load_state_dict(start["state"])
            run.train(rank, steps)
            found = {
                "ratios": ratios(run.handle),
                "state": run.handle.state_dict(),
                "weights": {key: each.clone() for key, each in run.model.state_dict().items()},
                "step": run.handle.step,
            }
            return {**found, "print": run.end()}

    codec = gradwire.topk(ratio=0.05)
    whole = trained("auto", range(16), CODEC)
    half = trained("auto", range(10), CODEC)
    torch.save(half["state"], f"{folder}/{rank}.pt")
    again = trained("auto", range(10, 16), start=half)
    alone = trained(codec, range(10))
    return {
        "whole": whole["print"],
        "again": again["print"],
        "as codec": trained(codec, range(10, 16), start=half)["print"],
        "taken": trained("auto", range(10, 16), start=alone)["print"],
        "alone on": trained(codec, range(10, 16), start=alone)["print"],
        "ratios": again["ratios"],
        "setting": about(half["state"])["schedule"]["setting"],
        "steps": (half["step"], again["step"]),
    }


def alone(rank: int, world_size: int, folder: str) -> dict[str, Any]:
    """Go on with what two ranks have saved, by itself."""
    states = [torch.load(f"{folder}/{each}.pt", weights_only=True) for each in range(2)]
    run = Auto(wrap=MIN)
    run.handle.load_state_dict(states)
    before = ratios(run.handle), max(each.any() for each in residuals(run.handle).values())
    run.train(rank, range(4))
    own = Run(None)
    own.model.load_state_dict(run.model.state_dict())
    for each in (run, own):
        each.train(rank, range(4, 8))
    found = {"before": before, "after": ratios(run.handle), "apart": apart(run.model, own.model)}
    found["left"] = any(each.any() for each in residuals(run.handle).values())
    found["reason"] = run.handle.report().decision
    run.end()
    return found


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


def refused(rank: int, world_size: int) -> dict[str, str]:
    """Pass what does not go with it; return what is said."""
    model = network()
    named = list(model.named_parameters())
    cases: dict[str, Any] = {
        "schedule": {"schedule": Accordion(0.1, 0.01)},
        "factor": {"min_ratio": 100},
        "sum of steps": {"op": library.Sum, "optimizer": AdamW(model.parameters())},
        "a codec": {"codec": gradwire.topk(ratio=0.1), "min_ratio": 0.1},
        "ranks differ": {"min_ratio": 0.01 * (1 + rank)},
        "some with a codec": {"codec": gradwire.topk(ratio=0.01) if rank else "auto"},
    }
    found = {}
    for name, arguments in cases.items():
        base = torch.optim.SGD(model.parameters(), lr=0.1)
        kept = dict(base.__dict__), type(base)
        given = {"optimizer": base, "named_parameters": named, "codec": "auto", **arguments}
        try:
            gh.DistributedOptimizer(given.pop("optimizer"), **given)
        except (TypeError, ValueError) as error:
            found[name] = f"{type(error).__name__}: {error}"
        if name in ("schedule", "factor"):
            assert (dict(base.__dict__), type(base)) == kept
    betas = {name: 0.9 + at / 100 for at, (name, _) in enumerate(named)}
    groups = [{"params": [each], "betas": (0.9, betas[name])} for name, each in named]
    several = gh.DistributedOptimizer(AdamW(groups), named, codec="auto")
    coded = [each for each in several.handle._parameters.values() if each.has_state]
    assert len(coded) > 1
    assert all(each.codec.memory.beta2 == betas[each.name] for each in coded)
    several.handle.detach()
    return found


def lost(rank: int, world_size: int) -> dict[str, Any]:
    """Rank 1 is killed before a look, in which the other one waits for it."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)  # horovodrun ends the others, too
    said = []
    with scripted(CODEC):
        run = Auto()
        run.train(rank, range(2))  # the next step ends with a look
        if rank == 1:  # it has averaged its gradients by then
            run.pilot._look = lambda: os.kill(os.getpid(), signal.SIGKILL)
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
