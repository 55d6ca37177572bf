"""Decisions on real ranks: scripted ones, and those that follow from figures that are given."""

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any
from unittest import mock

import numpy as np
import torch
from torch.nn.parallel import DistributedDataParallel

import gradwire
import gradwire.torch.ddp
from gradwire._auto import BF16, FP32, Decider, Figures, Model, Plan, Setting
from gradwire.cost import Calibration, Link
from gradwire.cost.calibration import CodecCost, Line
from gradwire.schedule import Accordion, Constant, DenseWarmUp
from gradwire.schedule.warm_up import STEPS
from gradwire.torch.auto import controller as pilot
from gradwire.torch.auto.timings import figures
from gradwire.torch.ddp import GradientError, Handle
from tests.distributed.scenarios.common import (
    SHAPES,
    SMALL_BUCKETS,
    Given,
    about,
    attached,
    fingerprint,
    gradients_of,
    integers,
    network,
    residuals,
    train,
)

CODED = Setting("codec", 0.05)


class Scripted:
    """Decides what it was told, at looks that come every second pass."""

    skips, keeps, reason = 2, False, "It was told so."

    def __init__(
        self,
        plan: Plan,
        script: "Iterator[Callable[[int], Plan]]",
        *,
        due: int = 2,
        settled: bool = False,
    ) -> None:
        self.plan, self._script, self.due, self._settles = plan, script, due, settled
        self.settled = False

    def look(self, figures: Figures, evidence: object) -> Plan:
        del evidence
        self.due, self.settled = 2, self._settles
        make = next(self._script, None)
        if make is not None:
            self.plan = make(len(figures.buckets))
        return self.plan


@contextlib.contextmanager
def scripted(*plans: Callable[[int], Plan], due: int = 2, settled: bool = False) -> Iterator[None]:
    """Replace decisions by these, one after another; the last one stays.

    The first look is due so many passes after the decider is made. They are trials, unless settled.
    """
    script = iter(plans)
    with mock.patch.object(
        pilot, "Decider", lambda plan: Scripted(plan, script, due=due, settled=settled)
    ):
        yield


def every(setting: Setting) -> Callable[[int], Plan]:
    """The same for all buckets."""
    return lambda count: (setting,) * count


def mixed(count: int) -> Plan:
    """All three, with the codec for the last one."""
    return (*((FP32, CODED, BF16)[at % 3] for at in range(count - 1)), CODED)


def ratios(handle: Any) -> dict[str, Any]:
    """What each compressed parameter is sent with now; None where it is dense."""
    return {
        name: None if each.paused else each.codec.sparsify.ratio
        for name, each in handle._parameters.items()
        if each.state is not None
    }


def plan_of(handle: Handle) -> list[str]:
    """What is in use, in words."""
    deciding = handle._passes.auto
    assert isinstance(deciding, pilot.AutoController)
    return [str(each) for each in deciding.plan]


def sgd(module: Any) -> torch.optim.SGD:
    """One that changes nothing, but is stepped."""
    return torch.optim.SGD(module.parameters(), lr=0.0)


def switching(rank: int, world_size: int, *, spoiled: bool) -> dict[str, Any]:
    """Integers, so that sums are exact: in and out of the codec, whole and in part."""
    given = {name: np.zeros(int(np.prod(shape))) for name, shape in SHAPES.items()}
    applied = {name: np.zeros_like(zero) for name, zero in given.items()}
    found: dict[str, Any] = {"ratios": [], "left": [], "averages": [], "errors": []}
    module = Given()
    optimizer = sgd(module)
    options = {"optimizer": optimizer}
    with (
        scripted(every(CODED), mixed, every(FP32), every(BF16), every(CODED), every(FP32)),
        attached(module, "auto", options=options, bucket_cap_mb=SMALL_BUCKETS) as (model, handle),
    ):
        for step in range(24):
            gradients = integers(31, rank, step)
            dropped, before = spoiled and step % 3 == 2, handle.error
            if dropped and step % 2 and rank == 1:
                gradients["a"][3, 4] = torch.nan
            optimizer.zero_grad()
            model(gradients).backward()
            if (error := handle.error) is not before:
                assert isinstance(error, GradientError)
                with contextlib.suppress(GradientError):
                    optimizer.step()
                    raise AssertionError("gradients that are not finite were applied")
                found["errors"].append((step, error.name, error.rank))
            found["ratios"].append(ratios(handle))
            if dropped:  # no step: what was sent must come back
                continue
            optimizer.step()
            averages = gradients_of(model.module)
            for name, each in gradients.items():
                given[name] += each.numpy().ravel()
                applied[name] += averages[name] * world_size
            found["averages"].append(averages)
            found["left"].append({key: each.any() for key, each in residuals(handle).items()})
        found["report"] = handle.report().decision, str(handle.report())
        found["repr"] = repr(handle)
        return {**found, "given": given, "applied": applied, "final": residuals(handle)}


def plainly(rank: int, world_size: int) -> dict[str, Any]:
    """Bits of steps that stay dense, and of DDP's own."""
    del world_size
    found = {}
    for kind in ("auto", "ddp"):
        module = network()
        optimizer = torch.optim.AdamW(module.parameters(), lr=1e-2)
        with contextlib.ExitStack() as stack:
            model = DistributedDataParallel(module, bucket_cap_mb=SMALL_BUCKETS)
            if kind == "auto":
                stack.enter_context(scripted())
                handle = gradwire.torch.ddp.attach(model, "auto", optimizer=optimizer)
                stack.callback(handle.detach)
            train(model, rank, range(12), optimizer=optimizer)
        found[kind] = fingerprint(module)
    return found


def adam(rank: int, world_size: int) -> dict[str, Any]:
    """AdamW through all changes: replicas stay equal, and moments go to where they are needed."""
    del world_size
    module = network()
    optimizer = torch.optim.AdamW(module.parameters(), lr=1e-2)
    found: dict[str, Any] = {"prints": [], "moments": [], "ratios": [], "losses": []}
    weight: Any = module[0].weight
    with (
        scripted(every(CODED), every(FP32), mixed, every(FP32)),
        attached(module, "auto", options={"optimizer": optimizer}, bucket_cap_mb=SMALL_BUCKETS) as (
            model,
            handle,
        ),
    ):
        for step in range(23):
            train(model, rank, range(step, step + 1), optimizer=optimizer)
            found["prints"].append(fingerprint(module))
            found["ratios"].append(ratios(handle)["0.weight"])
            held = optimizer.state.get(weight)
            found["moments"].append(held and (float(held["step"]), held["exp_avg_sq"].sum().item()))
            with torch.no_grad():
                found["losses"].append(float(sum(each.abs().sum() for each in module.parameters())))
        found["residual"] = float(np.abs(residuals(handle)["0.weight"]).max())
    return found


SHARE = {"fp32": 1.0, "bf16": 0.5, "codec": 0.02}
"""Of the bytes of float32."""


def other_figures(
    rank: int, bandwidth: list[float], handles: list[Handle]
) -> Callable[..., Figures | None]:
    """Figures as of a link of this speed, other ones on each rank."""

    def figures(places: Sequence[Any], tensors: int, records: Sequence[Any]) -> Figures:
        del records
        numels = tuple(each.numel for each in places)
        deciding = handles[0]._passes.auto
        assert isinstance(deciding, pilot.AutoController)
        shares = [SHARE[each.kind] for each in deciding.plan]
        seconds = tuple(
            32.0 * share * numel / bandwidth[0] * (1.0 + 0.2 * rank)
            for share, numel in zip(shares, numels, strict=True)
        )
        return Figures(
            48,
            0.01 * (1.0 + 0.1 * rank) + sum(seconds),
            numels,
            tensors,
            tuple(each.codable for each in places),
            tuple(each.halvable for each in places),
            tuple(0.001 * at * (1.0 + rank) for at in range(len(numels))),
            seconds,
            tuple(4.0 * numel for numel in numels),
            sum(seconds),
        )

    return figures


class Known:
    """Evidence of a codec that costs nothing, and the link of the figures."""

    bandwidth: list[float]

    def __init__(
        self, choices: Any, channel: Any, plan: Plan, calibration: Any, between: Any
    ) -> None:
        del channel, plan, between
        self._ratios = choices.ratios
        line = Line(1e-9, 1e-12, 1e-12)
        cost = CodecCost(choices.codec, line, line, 48.0, 32.0, 0.01, 8.0)
        self.calibration = calibration or Calibration({"codec": cost}, 1e-12, 1e-12, 1)

    def model(self, figures: Figures) -> Model:
        return Model(figures, 2, Link(self.bandwidth[0]), self.calibration, self._ratios)


def deciding(rank: int, world_size: int) -> dict[str, Any]:
    """The decider itself, with figures that differ between the ranks; the link changes twice."""
    del world_size
    bandwidth = [1e5]
    handles: list[Handle] = []
    module = network()
    optimizer = sgd(module)
    found: dict[str, Any] = {"plans": [], "reasons": []}
    with (
        mock.patch.object(pilot, "figures", other_figures(rank, bandwidth, handles)),
        mock.patch.object(pilot, "Measured", type("Given", (Known,), {"bandwidth": bandwidth})),
        attached(module, "auto", options={"optimizer": optimizer}, bucket_cap_mb=SMALL_BUCKETS) as (
            model,
            handle,
        ),
    ):
        handles.append(handle)
        for step in range(300):
            bandwidth[0] = 1e12 if 50 <= step < 150 else 1e5
            train(model, rank, range(step, step + 1), optimizer=optimizer)
            found["plans"].append(plan_of(handle))
            found["reasons"].append(handle.report(residuals=False).decision)
    return found


def real(rank: int, world_size: int, records: int) -> dict[str, Any]:
    """Nothing replaced: whatever it measures here, all ranks decide the same."""
    del world_size
    known: list[int] = []

    def counted(places: Sequence[Any], tensors: int, every: Sequence[Any]) -> Figures | None:
        known.append(len(every))
        return figures(places, tensors, every)

    module = network()
    optimizer = torch.optim.AdamW(module.parameters(), lr=1e-3)
    made: list[Decider] = []

    def eager(plan: Plan) -> Decider:
        made.append(Decider(plan))
        return made[-1]

    found: dict[str, Any] = {}
    with (
        mock.patch.object(pilot, "Decider", eager),
        mock.patch.object(pilot, "_RECORDS", records),
        mock.patch.object(pilot, "figures", counted),
        mock.patch("gradwire._auto.decider.MATTERS", -1.0),  # so that it looks into everything
        attached(module, "auto", options={"optimizer": optimizer}, bucket_cap_mb=SMALL_BUCKETS) as (
            model,
            handle,
        ),
    ):
        plans = []
        for step in range(260):
            train(model, rank, range(step, step + 1), optimizer=optimizer)
            plans.append(plan_of(handle))
        found = {"plans": plans, "reason": handle.report().decision, "known": known}
        found["model"] = made[0]._model is not None
        found["print"] = fingerprint(module)
    return found


def resuming(rank: int, world_size: int, folder: str) -> dict[str, Any]:
    """Save with the codec in use, and go on elsewhere: with auto, with a codec, and back."""
    del world_size
    codec = gradwire.topk(ratio=0.05)

    def trained(
        what: Any, steps: range, *plans: Any, saved: Any = None, start: Any = None
    ) -> dict[str, Any]:
        module = network()
        if start is not None:
            module.load_state_dict(start)
        optimizer = torch.optim.SGD(module.parameters(), lr=0.05)
        options = {"min_ratio": 0.05} if what == "auto" else {}
        with (
            scripted(*plans),
            attached(
                module,
                what,
                options=options | {"optimizer": optimizer},
                bucket_cap_mb=SMALL_BUCKETS,
            ) as (model, handle),
        ):
            if saved is not None:
                handle.load_state_dict(saved)
            train(model, rank, steps, optimizer=optimizer)
            weights = {key: each.clone() for key, each in module.state_dict().items()}
            return {
                "print": fingerprint(module),
                "ratios": ratios(handle),
                "state": handle.state_dict(),
                "weights": weights,
                "step": handle.step,
            }

    whole = trained("auto", range(16), every(CODED))
    half = trained("auto", range(10), every(CODED))
    torch.save(half["state"], f"{folder}/{rank}.pt")
    again = trained("auto", range(10, 16), saved=half["state"], start=half["weights"])
    as_codec = trained(codec, range(10, 16), saved=half["state"], start=half["weights"])
    alone = trained(codec, range(10))
    taken = trained("auto", range(10, 16), saved=alone["state"], start=alone["weights"])
    alone_on = trained(codec, range(10, 16), saved=alone["state"], start=alone["weights"])
    return {
        "whole": whole["print"],
        "again": again["print"],
        "as codec": as_codec["print"],
        "taken": taken["print"],
        "alone on": alone_on["print"],
        "ratios": again["ratios"],
        "chosen": about(half["state"])["schedule"]["chosen"],
        "steps": (half["step"], again["step"]),
        "left": half["state"][f"rank{rank}"]["residual"]["0.weight"].numpy(),
    }


def another_size(rank: int, world_size: int, folder: str) -> dict[str, Any]:
    """Go on with what two ranks have saved."""
    states = [torch.load(f"{folder}/{each}.pt", weights_only=True) for each in range(2)]
    module = network()
    optimizer = torch.optim.SGD(module.parameters(), lr=0.05)
    with (
        scripted(),
        attached(module, "auto", options={"optimizer": optimizer}, bucket_cap_mb=SMALL_BUCKETS) as (
            model,
            handle,
        ),
    ):
        handle.load_state_dict(states)
        left = residuals(handle)
        train(model, rank, range(3), optimizer=optimizer)
        return {"ratios": ratios(handle), "left": left, "print": fingerprint(module)}


def in_other_ways(rank: int, world_size: int) -> dict[str, Any]:
    """Accumulation, paused and discarded passes, static graphs, and parameters that are unused."""
    del world_size
    found = {}
    kinds: dict[str, dict[str, Any]] = {
        "static": {"static_graph": True},
        "unused": {"find_unused_parameters": True},
        "views": {"gradient_as_bucket_view": True},
    }
    for kind, options in kinds.items():
        module = Given()
        optimizer = torch.optim.SGD(module.parameters(), lr=0.5)
        with (
            scripted(every(CODED), mixed, every(FP32)),
            attached(
                module,
                "auto",
                options={"optimizer": optimizer},
                bucket_cap_mb=SMALL_BUCKETS,
                **options,
            ) as (model, handle),
        ):
            steps = []
            for step in range(16):
                optimizer.zero_grad()
                if kind != "static":  # torch: only in the first step
                    with model.no_sync():
                        model(integers(7, rank, 100 + step)).backward()
                names = [name for name in SHAPES if kind != "unused" or name != "b"]
                model(integers(7, rank, step, names)).backward()
                optimizer.step()
                optimizer.zero_grad()
                with handle.paused():
                    model(integers(9, rank, step)).backward()
                optimizer.zero_grad()
                steps.append(fingerprint(module))
            found[kind] = {"prints": steps, "ratios": ratios(handle), "step": handle.step}
    return found


def warming_up(rank: int, world_size: int, folder: str) -> dict[str, Any]:
    """The codec in use sends more at first; while it is tried, and without a warm-up, it does not.

    The run is saved in the middle of the warm-up, and goes on from there.
    """
    del world_size
    least = every(Setting("codec", 0.01))
    found: dict[str, Any] = {}
    saved: dict[str, Any] = {}
    for kind in ("tried", "in use", "resumed", "constant"):
        module = network()
        optimizer = torch.optim.AdamW(module.parameters(), lr=1e-2)
        options: dict[str, Any] = {"optimizer": optimizer}
        if kind == "constant":
            options["schedule"] = Constant()
        with (
            scripted(least, settled=kind != "tried"),
            attached(module, "auto", options=options, bucket_cap_mb=SMALL_BUCKETS) as (
                model,
                handle,
            ),
        ):
            deciding = handle._passes.auto
            assert isinstance(deciding, pilot.AutoController)
            if kind == "resumed":
                module.load_state_dict(saved["model"])
                optimizer.load_state_dict(saved["optimizer"])
                handle.load_state_dict(saved["handle"])
            sent, shown = {}, {}
            for step in range(STEPS + 30):
                train(model, rank, range(step, step + 1), optimizer=optimizer)
                sent[handle.step] = ratios(handle)["0.weight"], deciding._looks
                shown[handle.step] = handle.report().schedule
                if kind == "in use" and handle.step == STEPS // 2:
                    file = f"{folder}/{rank}.pt"
                    halves: dict[str, Any] = {
                        "optimizer": optimizer,
                        "handle": handle,
                        "model": module,
                    }
                    torch.save({key: each.state_dict() for key, each in halves.items()}, file)
                    saved = torch.load(file, weights_only=True)
            found[kind] = {"sent": sent, "shown": shown, "print": fingerprint(module)}
    return found


def held_back(rank: int, world_size: int) -> list[str]:
    """Gradients that no pass has exchanged are exchanged by the optimizer, dense or not."""
    del world_size
    module = network()
    optimizer = torch.optim.AdamW(module.parameters(), lr=1e-2)
    found = []
    with (
        scripted(every(CODED)),
        attached(module, "auto", options={"optimizer": optimizer}, bucket_cap_mb=SMALL_BUCKETS) as (
            model,
            handle,
        ),
    ):
        for step in range(12):
            with model.no_sync() if step % 2 else contextlib.nullcontext():
                model(torch.full((2, 32), float(rank + step))).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
            found.append(fingerprint(module))
        assert handle.attached
    return found


def without_feedback(rank: int, world_size: int) -> dict[str, Any]:
    """Send every entry in fewer bits, in front of an optimizer of torch."""
    del world_size
    module = network()
    optimizer = torch.optim.NAdam(module.parameters(), lr=1e-2)
    found: dict[str, Any] = {"prints": [], "coded": []}
    with (
        scripted(every(Setting("codec")), every(FP32), every(Setting("codec"))),
        attached(module, "auto", options={"optimizer": optimizer}, bucket_cap_mb=SMALL_BUCKETS) as (
            model,
            handle,
        ),
    ):
        for step in range(18):
            train(model, rank, range(step, step + 1), optimizer=optimizer)
            found["prints"].append(fingerprint(module))
            found["coded"].append(
                [not each.paused for each in handle._parameters.values() if each.state is not None]
            )
        found["codec"] = repr(handle.codec)
    return found


def refused(rank: int, world_size: int) -> list[str]:
    """What attach says of arguments that do not go with it."""
    module = network()
    optimizer = torch.optim.SGD(module.parameters(), lr=0.1)
    model = DistributedDataParallel(module)
    cases: list[dict[str, Any]] = [
        {"optimizer": None},
        {"optimizer": torch.optim.SGD},
        {"min_ratio": 100},
        {"min_ratio": 0.0},
        {"min_ratio": "0.1"},
        {"schedule": Accordion(0.1, 0.01)},
        {"schedule": DenseWarmUp(2)},
        {"hierarchy": 2},
        {"grad_scaler": torch.amp.GradScaler("cpu")},
        {"grad_scaler": torch.amp.GradScaler},
        {"min_ratio": 0.01 * (1 + rank)},
        {"codec": gradwire.topk(ratio=0.1), "min_ratio": 0.1},
        {"codec": "automatic"},
    ]
    said = []
    for case in cases:
        options = {"optimizer": optimizer, "codec": "auto", **case}
        try:
            gradwire.torch.ddp.attach(model, options.pop("codec"), **options)
        except (TypeError, ValueError) as error:
            said.append(f"{type(error).__name__}: {error}")
    hiding = DistributedDataParallel(
        network(), find_unused_parameters=True, skip_all_reduce_unused_params=True
    )
    try:
        gradwire.torch.ddp.attach(hiding, "auto", optimizer=sgd(hiding))
    except ValueError as error:
        said.append(f"{type(error).__name__}: {error}")
    unscaled = torch.amp.GradScaler("cpu", enabled=False)
    with gradwire.torch.ddp.attach(
        model, "auto", optimizer=optimizer, grad_scaler=unscaled
    ) as handle:
        try:
            handle.regroup()
        except ValueError as error:
            said.append(f"{type(error).__name__}: {error}")
    del world_size
    return said
