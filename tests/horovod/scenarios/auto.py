"""Decisions on real ranks of Horovod: scripted ones, and those that follow from figures."""

import functools
import os
import signal
from collections.abc import Callable
from typing import Any
from unittest import mock

import horovod.common.exceptions as hvd_errors
import numpy as np
import torch
from torch import nn
from torch.optim import AdamW

import gradwire
import gradwire.torch.horovod as gh
from gradwire._auto import FP32, Decider, Figures, Plan
from gradwire.schedule import Accordion
from gradwire.torch.auto import controller as pilot
from gradwire.torch.auto import probes as evidence
from gradwire.torch.auto import timings as records
from gradwire.torch.cost.link import measure_by
from gradwire.torch.transport.horovod import HorovodTransport, library
from tests.distributed.scenarios.auto import (
    CODED,
    Known,
    every,
    other_figures,
    plan_of,
    ratios,
    scripted,
)
from tests.distributed.scenarios.auto_programs import Eager
from tests.distributed.scenarios.common import (
    SHAPES,
    Given,
    about,
    batch,
    fingerprint,
    gradients_of,
    integers,
    network,
    reaches,
    residuals,
)
from tests.horovod.scenarios.training import Run, apart


def by_turns(count: int) -> Plan:
    """The codec for every second bucket, from the first one on."""
    return tuple((CODED, FP32)[at % 2] for at in range(count))


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
    found: dict[str, Any] = {"ratios": [], "left": [], "averages": [], "errors": []}
    with scripted(every(CODED), by_turns, every(FP32), every(CODED), every(FP32)):
        run = Auto(model=Given(), lr=0.0, wrap={"backward_passes_per_step": passes, "groups": 5})
        for step in range(42):
            given_now = [integers(31, rank, passes * step + each) for each in range(passes)]
            dropped = spoiled and step % 3 == 2
            if dropped and step % 2 and rank == 1:
                given_now[-1]["a"][3, 4] = torch.nan
            run.optimizer.zero_grad()
            for gradients in given_now:
                run.model(gradients).backward()
            try:
                run.optimizer.synchronize()
            except gh.GradientError as error:
                found["errors"].append((step, error.name, error.rank))
                dropped = True
            found["ratios"].append(ratios(run.handle))
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
        found["report"] = run.handle.report().decision
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
        looked = auto.handle.report().decision
        detached = Run(gradwire.topk(ratio=0.05), kind, lr=1e-3, wrap=wrap)
        detached.end()
        detached.train(rank, range(8), passes)
        own = Run(None, own_kind, lr=1e-3, wrap=wrap).train(rank, range(8), passes)
        found[name] = {
            "dense": dense and looked == "It was told so.",
            "steps": auto.handle.step,
            "own": apart(auto.model, own.model),
            "detached": apart(auto.model, detached.model),
        }
        auto.end()
    return found


def kinds(rank: int, world_size: int) -> dict[str, Any]:
    """Sparse gradients, dtypes, frozen parameters and pauses: replicas go through all alike."""
    found: dict[str, Any] = {}

    def inner(count: int) -> Plan:
        return (FP32, CODED, FP32)[:count]  # not the sparse one, which is the last one

    with scripted(inner, every(FP32), inner):
        torch.manual_seed(3)
        model = nn.Sequential(nn.Embedding(100, 20, sparse=True), nn.Linear(20, 80), nn.ReLU())
        run = Auto(model=model)
        seen = set()
        for step in range(20):
            run.optimizer.zero_grad()
            run.model(torch.tensor([rank, step, 7])).square().sum().backward()
            run.optimizer.step()
            seen.add(tuple(ratios(run.handle).values()))
        codable = [each.codable for each in run.pilot._places]
        found["sparse"] = run.end(), sorted(map(repr, seen)), codable
    script = [every(CODED), by_turns, every(FP32), every(CODED)]
    for name, dtypes in (
        ("mixed", {"a": torch.float64, "b": torch.float16, "bias": torch.bfloat16}),
        ("bfloat16", dict.fromkeys(SHAPES, torch.bfloat16)),
    ):
        with scripted(*script):
            run = Auto(model=Given(dtypes), lr=1.0, wrap={"groups": 2})
            prints = []
            for step in range(16):
                names = [each for each in SHAPES if each != "b" or step % 2]
                run.optimizer.zero_grad()
                run.model(integers(7, rank, step, names)).backward()
                run.optimizer.step()
                prints.append(fingerprint(run.model))
            run.end()
            found[name] = prints
    with scripted(*script):
        run = Auto()
        steps = []
        for step in range(24):
            first = run.model.get_parameter("0.weight")
            first.requires_grad_(step < 8 or step > 15)  # other buckets: it begins anew
            if step % 5 == 4:
                with run.handle.paused():
                    run.train(rank, range(step, step + 1))
            else:
                run.train(rank, range(step, step + 1))
            steps.append((fingerprint(run.model), len(run.pilot.plan)))
        run.end()
        found["frozen"] = steps
    return found


def adam(rank: int, world_size: int) -> dict[str, Any]:
    """AdamW through all changes: replicas stay equal, and moments go to where they are needed."""
    found: dict[str, Any] = {"prints": [], "moments": [], "ratios": []}
    with scripted(every(CODED), every(FP32), by_turns, every(FP32)):
        run = Auto(AdamW, lr=1e-2)
        weight = run.model.get_parameter("0.weight")
        for step in range(20):
            run.train(rank, range(step, step + 1))
            found["prints"].append(fingerprint(run.model))
            found["ratios"].append(ratios(run.handle)["0.weight"])
            held = run.optimizer.state.get(weight)
            found["moments"].append(held and (float(held["step"]), held["exp_avg_sq"].sum().item()))
        run.end()
    return found


def adding(rank: int, world_size: int) -> dict[str, Any]:
    """Exchange twice in a step, from a step on when the codec is in use."""
    del world_size
    found: dict[str, Any] = {"coded": [], "prints": []}
    with mock.patch.object(pilot, "Decider", Eager):
        run = Auto(AdamW, lr=1e-2)
        for step in range(40):
            run.optimizer.zero_grad()
            for at in range(1 + (step >= 20)):
                inputs, targets = batch(rank, 2 * step + at)
                torch.nn.functional.mse_loss(run.model(inputs), targets).backward()
                run.optimizer.synchronize()
            with run.optimizer.skip_synchronize():
                run.optimizer.step()
            found["coded"].append(any(each is not None for each in ratios(run.handle).values()))
            found["prints"].append(fingerprint(run.model))
        found["decision"] = run.handle.report().decision
        run.end()
    return found


def deciding(rank: int, world_size: int) -> dict[str, Any]:
    """The decider itself, with figures that differ between the ranks; the link changes twice."""
    bandwidth = [1e5]
    handles: list[Any] = []
    found: dict[str, Any] = {"plans": [], "reasons": []}
    with (
        mock.patch.object(pilot, "figures", other_figures(rank, bandwidth, handles)),
        mock.patch.object(pilot, "Measured", type("Given", (Known,), {"bandwidth": bandwidth})),
    ):
        run = Auto(lr=0.0)
        handles.append(run.handle)
        for step in range(300):
            bandwidth[0] = 1e12 if 50 <= step < 150 else 1e5
            run.train(rank, range(step, step + 1))
            found["plans"].append(plan_of(run.handle))
            found["reasons"].append(run.handle.report(residuals=False).decision)
        run.end()
    return found


def real(rank: int, world_size: int) -> dict[str, Any]:
    """Nothing replaced: whatever it measures here, all ranks decide the same."""
    made: list[Decider] = []
    links = []

    def eager(plan: Plan) -> Decider:
        made.append(Decider(plan))
        return made[-1]

    def measured(*arguments: Any, **options: Any) -> Any:
        links.append(measure_by(*arguments, **options))
        return links[-1]

    with (
        mock.patch.object(pilot, "Decider", eager),
        mock.patch("gradwire._auto.decider.MATTERS", -1.0),  # so that it looks into everything
        mock.patch("gradwire.torch.auto.probes.measure_by", measured),
    ):
        run = Auto(AdamW, lr=1e-3)
        plans = []
        for step in range(200):
            run.train(rank, range(step, step + 1))
            plans.append(plan_of(run.handle))
        looks = run.pilot._looks
        found: dict[str, Any] = {
            "plans": plans,
            "looks": looks,
            "reason": run.handle.report().decision,
        }
        found["model"] = made[0]._model is not None
        # With the codec in use the link is measured by all-reduces, here at once.
        channel = HorovodTransport(library.global_process_set, None).make()
        choices = run.pilot._choices
        known = evidence.Measured(choices, channel, (CODED,) * 3, None)
        figures = records.figures(run.pilot._places, 6, list(run.pilot._records))
        if figures is None:
            figures = other_figures(0, [1e6], [run.handle])(run.pilot._places, 6, [])
        assert figures is not None
        every_one = [
            Figures.from_json(each) for each in channel.all_gather_object(figures.to_json())
        ]
        found["predicted"] = known.model(every_one[0]).compute > 0.0
        found["links"] = [(each.bandwidth, each.latency, each.overhead) for each in links]
        found["print"] = run.end()
    return found


def ends(rank: int, world_size: int) -> dict[str, Any]:
    """The end of an all-reduce is noted while the backward pass goes on."""
    with scripted(due=5):  # ranks meet in the pass that makes the decider, and in that of a look
        run = Auto()
        run.train(rank, range(3))
        known: list[Any] = []

        def wait(gradient: torch.Tensor) -> None:
            record = run.pilot._current
            assert record is not None
            known.append(len(record.buckets))
            known.append(reaches(functools.partial(_has_ended, record.buckets[0])))

        first = run.model.get_parameter("0.weight")
        hook = first.register_hook(wait)  # the last gradient of the pass
        run.train(rank, range(3, 4))
        hook.remove()
        record = run.pilot._current
        assert record is not None
        buckets = [
            (reaches(functools.partial(_has_ended, each)), each.nbytes) for each in record.buckets
        ]
        sizes = [each.numel for each in record.places]
        halvable = [each.halvable for each in record.places]
        run.end()
    return {"known": known, "buckets": buckets, "sizes": sizes, "halvable": halvable}


def _has_ended(bucket: Any) -> bool:
    return bool(bucket.done >= bucket.ready)


def resuming(rank: int, world_size: int, folder: str) -> dict[str, Any]:
    """Save with the codec in use, and go on: with auto, with a codec, and from one."""

    def trained(
        what: Any, steps: range, *plans: Callable[[int], Plan], start: Any = None
    ) -> dict[str, Any]:
        with scripted(*plans):
            wrap = {"min_ratio": 0.05} if what == "auto" else {}
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
    whole = trained("auto", range(16), every(CODED))
    half = trained("auto", range(10), every(CODED))
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
        "chosen": about(half["state"])["schedule"]["chosen"],
        "steps": (half["step"], again["step"]),
    }


def alone(rank: int, world_size: int, folder: str) -> dict[str, Any]:
    """Go on with what two ranks have saved, by itself."""
    states = [torch.load(f"{folder}/{each}.pt", weights_only=True) for each in range(2)]
    run = Auto(wrap={"min_ratio": 0.05})
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
    with scripted(every(CODED), every(FP32)):
        run = Auto().train(rank, range(7))
        state = gh.ElasticState(model=run.model, optimizer=run.optimizer, at=7)
        state.commit()
        before, prints = ratios(run.handle), fingerprint(run.model)
        pilots = [run.pilot]
        run.train(rank, range(7, 12))
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
            "anew": pilots[0] is not pilots[1] and run.pilot.plan == (),
        }
        run.train(rank, range(7, 12))
        found["plan"] = plan_of(run.handle)
        return found | {"print": run.end()}


def refused(rank: int, world_size: int) -> dict[str, str]:
    """Pass what does not go with it; return what is said."""
    model = network()
    named = list(model.named_parameters())
    cases: dict[str, Any] = {
        "schedule": {"schedule": Accordion(0.1, 0.01)},
        "scaler": {"grad_scaler": torch.amp.GradScaler("cpu")},
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
        if name in ("schedule", "scaler", "factor"):
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
    with scripted(every(CODED)):
        run = Auto()
        run.train(rank, range(1))
        while not _is_due(run.pilot):
            run.train(rank, range(1))
        if rank == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        looks = run.pilot._looks
        for _ in range(2):
            try:
                run.train(rank, range(1))
            except Exception as error:
                internal = isinstance(error, hvd_errors.HorovodInternalError)
                said.append((type(error).__name__, str(error), internal))
                run.optimizer.zero_grad()
        looked = run.pilot._looks - looks
        run.handle.detach()
    return {"said": said, "looked": looked}


def _is_due(deciding: pilot.AutoController) -> bool:
    """Tell whether the next turn begins with a look."""
    return deciding._decider is not None and deciding._left == 1
