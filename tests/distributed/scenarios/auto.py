"""Decisions on real ranks: scripted ones, and those that follow from times that are given."""

import contextlib
import json
import os
import warnings
from collections.abc import Iterator, Sequence
from typing import Any
from unittest import mock

import numpy as np
import torch
from torch.nn.parallel import DistributedDataParallel

import gradwire
import gradwire.torch.ddp
from gradwire._auto import Setting
from gradwire.exchange import ReduceScatter
from gradwire.quantize import Float32
from gradwire.schedule import Accordion, Constant, DenseWarmUp
from gradwire.schedule.warm_up import STEPS
from gradwire.torch.auto import Automatic
from gradwire.torch.auto import controller as pilot
from gradwire.torch.auto.controller import StepClock
from gradwire.torch.ddp import ExchangeError, GradientError, PairingWarning, UpdateError
from tests.distributed.scenarios.common import (
    SHAPES,
    SMALL_BUCKETS,
    Given,
    about,
    attached,
    batch,
    fingerprint,
    gradients_of,
    integers,
    network,
    residuals,
    train,
)

UNCOMPRESSED, BFLOAT16, CODEC = gradwire._auto.SETTINGS


class Scripted:
    """Decides what it was told, at looks that come after every measured step, later every third."""

    keeps = False

    def __init__(self, setting: Setting, script: list[Setting], *, settled: bool) -> None:
        self.setting, self._script, self.settled = setting, script, settled
        self.seconds = dict.fromkeys(gradwire._auto.SETTINGS, 0.1)

    def look(self, seconds: float, elapsed: float) -> None:
        assert seconds > 0.0
        assert elapsed > 0.0
        if self._script:
            self.setting = self._script.pop(0)

    @property
    def due(self) -> int:
        return 1 if self._script else 3

    def leave_out(self, setting: Setting) -> None:
        self._script[:] = [each for each in self._script if each != setting]
        self.setting = UNCOMPRESSED if self.setting == setting else self.setting


@contextlib.contextmanager
def scripted(*settings: Setting, settled: bool = True) -> Iterator[None]:
    """Replace decisions by these, one after another; the last one stays.

    The first is made after three steps, each further one after three with the one before.
    """
    script = list(settings)
    with mock.patch.object(
        pilot, "Decider", lambda _, setting: Scripted(setting, script, settled=settled)
    ):
        yield


def ratios(handle: Any) -> dict[str, Any]:
    """What each compressed parameter is sent with now; None where it is dense."""
    return {
        name: None if each.paused else each.codec.sparsify.ratio
        for name, each in handle._parameters.items()
        if each.state is not None
    }


def mode_of(handle: Any) -> str:
    """How the model is averaged now."""
    return str(handle._scheduler.mode)


def sgd(module: Any) -> torch.optim.SGD:
    """One that changes nothing, but is stepped."""
    return torch.optim.SGD(module.parameters(), lr=0.0)


def automatic(module: Any, optimizer: Any, codec: Any = "auto", **options: Any) -> Any:
    """Attach with small buckets."""
    options = {"optimizer": optimizer, **options}
    return attached(module, codec, options=options, bucket_cap_mb=SMALL_BUCKETS)


def switching(
    rank: int,
    world_size: int,
    *,
    spoiled: bool = False,
    owners: bool = False,
) -> dict[str, Any]:
    """Integers, so that sums are exact: in and out of the codec."""
    given = {name: np.zeros(int(np.prod(shape))) for name, shape in SHAPES.items()}
    applied = {name: np.zeros_like(zero) for name, zero in given.items()}
    found: dict[str, Any] = {"modes": [], "left": [], "averages": [], "errors": []}
    module = Given()
    optimizer = sgd(module)
    codec: Any = "auto"
    options: dict[str, Any] = {"min_ratio": None if owners else 0.05}
    if owners:
        codec = Automatic(gradwire.topk(ratio=0.05, exchange=ReduceScatter()))
    with (
        scripted(CODEC, UNCOMPRESSED, BFLOAT16, CODEC, UNCOMPRESSED),
        automatic(module, optimizer, codec, **options) as (model, handle),
    ):
        for step in range(32 if spoiled else 21):
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
            found["modes"].append(mode_of(handle))
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
        return {**found, "given": given, "applied": applied, "final": residuals(handle)}


def plainly(rank: int, world_size: int) -> dict[str, Any]:
    """Bits of steps that stay dense, and of DDP's own; exchanged in the pass, and in the step."""
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
    found: dict[str, Any] = {"prints": [], "moments": [], "modes": [], "losses": []}
    weight: Any = module[0].weight
    with (
        scripted(CODEC, UNCOMPRESSED, CODEC, BFLOAT16),
        automatic(module, optimizer, min_ratio=0.05) as (model, handle),
    ):
        for step in range(19):
            found["modes"].append(mode_of(handle))
            train(model, rank, range(step, step + 1), optimizer=optimizer)
            found["prints"].append(fingerprint(module))
            held = optimizer.state.get(weight)
            found["moments"].append(held and (float(held["step"]), held["exp_avg_sq"].sum().item()))
            with torch.no_grad():
                found["losses"].append(float(sum(each.abs().sum() for each in module.parameters())))
        found["residual"] = float(np.abs(residuals(handle)["0.weight"]).max())
        found["last"] = mode_of(handle)
    return found


def momentum(rank: int, world_size: int) -> dict[str, Any]:
    """SGD with momentum, by a codec that sends everything: its steps are those of plain DDP.

    With all entries sent, any difference is that of momentum that was lost or counted twice.
    """
    del world_size
    found: dict[str, Any] = {}
    for nesterov in (False, True):
        weights = []
        for auto in (False, True):
            module = network()
            options: Any = {"momentum": 0.9, "nesterov": nesterov, "weight_decay": 0.01}
            optimizer = torch.optim.SGD(module.parameters(), lr=0.01, **options)
            codec: Any = Automatic(gradwire.dgc(1.0, masking=False, quantize=Float32()))
            with contextlib.ExitStack() as stack:
                model: Any = DistributedDataParallel(module, bucket_cap_mb=SMALL_BUCKETS)
                if auto:
                    stack.enter_context(scripted(CODEC, UNCOMPRESSED, CODEC, UNCOMPRESSED))
                    handle = gradwire.torch.ddp.attach(
                        model,
                        codec,
                        optimizer=optimizer,
                    )
                    stack.callback(handle.detach)
                train(model, rank, range(20), optimizer=optimizer)
            weights.append(torch.cat([each.detach().flatten() for each in module.parameters()]))
        found[f"nesterov={nesterov}"] = float((weights[0] - weights[1]).abs().max())
        found[f"print {nesterov}"] = fingerprint(module)
        found["moved"] = float(
            (weights[1] - torch.cat([each.detach().flatten() for each in network().parameters()]))
            .abs()
            .max()
        )
    return found


def masked(rank: int, world_size: int) -> dict[str, Any]:
    """SGD with momentum and the codec of `attach`: entries sent lose theirs, all others keep it."""
    del world_size
    module = network()
    optimizer = torch.optim.SGD(module.parameters(), lr=0.01, momentum=0.9)
    weight: Any = module[0].weight
    found: dict[str, Any] = {"modes": [], "momentum": [], "prints": []}
    with (
        scripted(CODEC, UNCOMPRESSED, CODEC, UNCOMPRESSED),
        automatic(module, optimizer, min_ratio=0.05) as (model, handle),
    ):
        for step in range(18):
            found["modes"].append(mode_of(handle))
            train(model, rank, range(step, step + 1), optimizer=optimizer)
            held = optimizer.state.get(weight, {}).get("momentum_buffer")
            found["momentum"].append(None if held is None else float(held.abs().mean()))
            found["prints"].append(fingerprint(module))
        found["codec"] = repr(handle.codec)
        found["left"] = max(float(np.abs(each).max()) for each in residuals(handle).values())
    return found


def given_clock(rank: int, seconds: dict[str, float], handles: list[Any]) -> type:
    """A clock by which steps take as long as is said, longer on each further rank."""

    class GivenClock:
        def __init__(self, device: torch.device) -> None:
            del device
            self.known = -1

        def clear(self) -> None:
            self.known = -1

        def mark(self) -> int:
            self.known += 1
            return self.known

        def median(self) -> float:
            return seconds[mode_of(handles[0])] * (1.0 + 0.02 * rank)

        def elapsed(self) -> float:
            return self.known * self.median()

    return GivenClock


SLOW: dict[str, float] = {UNCOMPRESSED: 1.0, BFLOAT16: 0.6, CODEC: 0.1}
FAST: dict[str, float] = {UNCOMPRESSED: 0.1, BFLOAT16: 0.11, CODEC: 0.13}


def deciding(rank: int, world_size: int, *, in_step: bool = False) -> dict[str, Any]:
    """The decider itself, with times that differ between the ranks; the link changes.

    The program may clip its own gradients, and leave the exchange to the optimizer's step.
    """
    del world_size
    seconds: dict[str, float] = dict(SLOW)
    handles: list[Any] = []
    module = network()
    optimizer = torch.optim.AdamW(module.parameters(), lr=1e-3)
    found: dict[str, Any] = {"modes": [], "reasons": [], "prints": []}
    with (
        mock.patch.object(pilot, "StepClock", given_clock(rank, seconds, handles)),
        automatic(module, optimizer, schedule=Constant()) as (model, handle),
    ):
        handles.append(handle)
        for step in range(130):
            if step == 40:
                seconds.update(FAST)
            if in_step:
                optimizer.zero_grad()
                inputs, targets = batch(rank, step)
                with model.no_sync():
                    torch.nn.functional.mse_loss(model(inputs), targets).backward()
                torch.nn.utils.clip_grad_norm_(module.parameters(), 0.5)
                optimizer.step()
            else:
                train(model, rank, range(step, step + 1), optimizer=optimizer)
            found["modes"].append(mode_of(handle))
            found["reasons"].append(handle.report(residuals=False).decision)
            found["prints"].append(fingerprint(module))
    return found


def real(rank: int, world_size: int) -> dict[str, Any]:
    """Nothing replaced: whatever it measures here, all ranks decide the same."""
    del world_size
    module = network()
    optimizer = torch.optim.AdamW(module.parameters(), lr=1e-3)
    modes = []
    with automatic(module, optimizer) as (model, handle):
        for step in range(2000):
            train(model, rank, range(step, step + 1), optimizer=optimizer)
            modes.append(mode_of(handle))
            decision = handle.report(residuals=False).decision
            if decision.startswith("Using"):
                break
        train(model, rank, range(20), optimizer=optimizer)
        return {"modes": modes, "decision": decision, "print": fingerprint(module)}


def scaled(rank: int, world_size: int) -> dict[str, Any]:
    """A loss scaler that skips steps, in all settings."""
    del world_size
    module = network()
    optimizer = torch.optim.AdamW(module.parameters(), lr=1e-2)
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    found: dict[str, Any] = {"modes": [], "prints": [], "scales": []}
    with (
        scripted(BFLOAT16, CODEC, UNCOMPRESSED),
        automatic(module, optimizer, min_ratio=0.05, grad_scaler=scaler) as (model, handle),
    ):
        for step in range(24):
            inputs, targets = batch(rank, step)
            optimizer.zero_grad()
            factor = float("nan") if rank == 1 and step % 5 == 4 else 1.0
            loss = factor * torch.nn.functional.mse_loss(model(inputs), targets)
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
            found["modes"].append(mode_of(handle))
            found["prints"].append(fingerprint(module))
            found["scales"].append(scaler.get_scale())
    return found


def joined(rank: int, world_size: int) -> dict[str, Any]:
    """Ranks with different numbers of inputs: nothing is measured, and nobody waits."""
    del world_size
    module = network()
    optimizer = torch.optim.SGD(module.parameters(), lr=0.01)
    with scripted(CODEC), automatic(module, optimizer) as (model, handle):
        with model.join():
            train(model, rank, range(4 + 2 * rank), optimizer=optimizer)
        return {"mode": mode_of(handle), "decision": handle.report().decision}


def resuming(rank: int, world_size: int, folder: str) -> dict[str, Any]:
    """Save with the codec in use, and go on elsewhere: with auto, with a codec, and back."""
    del world_size
    codec = gradwire.topk(ratio=0.05)

    def trained(
        what: Any, steps: range, *script: Setting, saved: Any = None, start: Any = None
    ) -> dict[str, Any]:
        module = network()
        if start is not None:
            module.load_state_dict(start)
        optimizer = torch.optim.SGD(module.parameters(), lr=0.05)
        options = {"min_ratio": 0.05} if what == "auto" else {}
        with scripted(*script), automatic(module, optimizer, what, **options) as (model, handle):
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

    whole = trained("auto", range(16), CODEC)
    half = trained("auto", range(10), CODEC)
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
        "setting": about(half["state"])["schedule"]["setting"],
        "steps": (half["step"], again["step"]),
        "left": half["state"][f"rank{rank}"]["residual"]["0.weight"].numpy(),
    }


def another_size(rank: int, world_size: int, folder: str) -> dict[str, Any]:
    """Go on with what two ranks have saved; a single rank has nothing to exchange."""
    states = [torch.load(f"{folder}/{each}.pt", weights_only=True) for each in range(2)]
    module = network()
    optimizer = torch.optim.SGD(module.parameters(), lr=0.05)
    with scripted(), automatic(module, optimizer, min_ratio=0.05) as (model, handle):
        handle.load_state_dict(states)
        left, loaded, modes = residuals(handle), ratios(handle), []
        for step in range(4):
            modes.append(mode_of(handle))
            train(model, rank, range(step, step + 1), optimizer=optimizer)
        return {
            "ratios": loaded,
            "left": left,
            "print": fingerprint(module),
            "modes": modes,
            "decision": handle.report().decision,
            "kept": any(each.any() for each in residuals(handle).values()),
        }


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
            scripted(CODEC, BFLOAT16, CODEC, UNCOMPRESSED),
            attached(
                module,
                "auto",
                options={"optimizer": optimizer},
                bucket_cap_mb=SMALL_BUCKETS,
                **options,
            ) as (model, handle),
        ):
            steps, modes = [], set()
            for step in range(18):
                optimizer.zero_grad()
                if kind != "static":  # torch: only in the first step
                    with model.no_sync():
                        model(integers(7, rank, 100 + step)).backward()
                names = [name for name in SHAPES if kind != "unused" or name != "b"]
                model(integers(7, rank, step, names)).backward()
                modes.add(mode_of(handle))
                optimizer.step()
                optimizer.zero_grad()
                with handle.paused():
                    model(integers(9, rank, step)).backward()
                optimizer.zero_grad()
                steps.append(fingerprint(module))
            found[kind] = {"prints": steps, "modes": sorted(modes), "step": handle.step}
    return found


def warming_up(rank: int, world_size: int, folder: str) -> dict[str, Any]:
    """The codec in use sends more at first; while it is probed, and without a warm-up, not.

    The run is saved in the middle of the warm-up, and goes on from there.
    """
    del world_size
    found: dict[str, Any] = {}
    saved: dict[str, Any] = {}
    for kind in ("probed", "in use", "resumed", "constant"):
        module = network()
        optimizer = torch.optim.AdamW(module.parameters(), lr=1e-2)
        options: dict[str, Any] = {"schedule": Constant()} if kind == "constant" else {}
        with (
            scripted(CODEC, settled=kind != "probed"),
            automatic(module, optimizer, **options) as (model, handle),
        ):
            deciding: Any = handle._passes.auto
            if kind == "resumed":
                module.load_state_dict(saved["model"])
                optimizer.load_state_dict(saved["optimizer"])
                handle.load_state_dict(saved["handle"])
            sent, shown = {}, {}
            for step in range(STEPS + 20):
                train(model, rank, range(step, step + 1), optimizer=optimizer)
                sent[handle.step] = ratios(handle)["0.weight"], deciding._looks
                shown[handle.step] = handle.report(residuals=False).schedule
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


def without_feedback(rank: int, world_size: int) -> dict[str, Any]:
    """Send every entry in fewer bits, in front of an optimizer that no codec follows."""
    del world_size
    module = network()
    optimizer = torch.optim.NAdam(module.parameters(), lr=1e-2)
    found: dict[str, Any] = {"prints": [], "modes": []}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", PairingWarning)
        attachment = automatic(module, optimizer)
    with scripted(CODEC, UNCOMPRESSED, CODEC), warnings.catch_warnings():
        warnings.simplefilter("ignore", PairingWarning)
        with attachment as (model, handle):
            for step in range(12):
                train(model, rank, range(step, step + 1), optimizer=optimizer)
                found["prints"].append(fingerprint(module))
                found["modes"].append(mode_of(handle))
            found["codec"] = repr(handle.codec)
    return found


# Programs -------------------------------------------------------------------------------------


def _once(optimizer: Any, losses: Sequence[Any]) -> None:
    optimizer.zero_grad()
    losses[0]().backward()
    optimizer.step()


def _twice(optimizer: Any, losses: Sequence[Any]) -> None:
    optimizer.zero_grad()
    for each in losses[:2]:
        each().backward()
    optimizer.step()


def _for_another_model(optimizer: Any, losses: Sequence[Any]) -> None:
    """As a discriminator, through which the generator's pass goes."""
    _once(optimizer, losses)
    losses[1]().backward()


def _by_closure(optimizer: Any, losses: Sequence[Any]) -> None:
    def closure() -> torch.Tensor:
        optimizer.zero_grad()
        loss: torch.Tensor = losses[0]()
        loss.backward()
        return loss

    optimizer.step(closure)


def _not_finite(optimizer: Any, losses: Sequence[Any]) -> None:
    """A step whose gradients are not finite is left out."""
    optimizer.zero_grad()
    (losses[0]() * (float("nan") if losses[2] % 4 == 3 else 1.0)).backward()
    every = [each for group in optimizer.param_groups for each in group["params"]]
    if all(bool(each.grad.isfinite().all()) for each in every):
        optimizer.step()


def _thrown_away(optimizer: Any, losses: Sequence[Any]) -> None:
    optimizer.zero_grad()
    losses[0]().backward()
    if losses[2] % 3:
        optimizer.step()


PROGRAMS: dict[str, Any] = {
    "once": _once,
    "twice": _twice,
    "for another model": _for_another_model,
    "by closure": _by_closure,
    "not finite": _not_finite,
    "thrown away": _thrown_away,
}


def programs(rank: int, world_size: int) -> dict[str, Any]:
    """Train as programs do: by DDP alone, and with ``"auto"``, which comes to the codec."""
    del world_size
    found: dict[str, Any] = {}
    for name, program in PROGRAMS.items():
        found[name] = {}
        for auto in (False, True):
            module = network()
            optimizer = torch.optim.AdamW(module.parameters(), lr=1e-2)
            modes, decision = [], ""
            with contextlib.ExitStack() as stack:
                model: Any = DistributedDataParallel(module, bucket_cap_mb=SMALL_BUCKETS)
                if auto:
                    stack.enter_context(scripted(CODEC, UNCOMPRESSED, CODEC))
                    handle = gradwire.torch.ddp.attach(
                        model, "auto", optimizer=optimizer, min_ratio=0.05
                    )
                    stack.callback(handle.detach)
                said = stack.enter_context(warnings.catch_warnings(record=True))
                warnings.simplefilter("always", PairingWarning)

                def loss(at: int, model: Any = model) -> torch.Tensor:
                    inputs, targets = batch(rank, at)
                    return torch.nn.functional.mse_loss(model(inputs), targets)

                for step in range(24):
                    losses = [
                        lambda at=2 * step: loss(at),
                        lambda at=2 * step + 1: loss(at),
                        step,
                    ]
                    program(optimizer, losses)
                    modes.append(mode_of(handle) if auto else "")
                if auto:
                    decision = handle.report(residuals=False).decision
                found[name]["auto" if auto else "ddp"] = {
                    "print": fingerprint(module),
                    "modes": modes,
                    "decision": decision,
                    "told": [str(each.message) for each in said if each.category is PairingWarning],
                }
    return found


def adding_later(rank: int, world_size: int) -> dict[str, Any]:
    """Begin to add up exchanged passes when the codec is in use; then go on without."""
    del world_size
    module = network()
    optimizer = torch.optim.AdamW(module.parameters(), lr=1e-2)
    said = ""
    with scripted(CODEC), automatic(module, optimizer, min_ratio=0.05) as (model, _handle):
        for step in range(8):
            train(model, rank, range(step, step + 1), optimizer=optimizer)
        inputs, targets = batch(rank, 9)
        optimizer.zero_grad()
        torch.nn.functional.mse_loss(model(inputs), targets).backward()
        try:
            torch.nn.functional.mse_loss(model(inputs), targets).backward()
        except UpdateError as error:
            said = str(error)
        train(model, rank, range(10, 14), optimizer=optimizer)
        return {"said": said, "print": fingerprint(module)}


# Checkpoints and lost ranks -------------------------------------------------------------------


def while_all_is_sent(rank: int, world_size: int) -> dict[str, Any]:
    """Save, and load nothing at all, when the codec is about to be left."""
    del world_size
    found: dict[str, Any] = {}
    for momentum in (0.0, 0.9):
        module = network()
        optimizer = torch.optim.SGD(module.parameters(), lr=0.0, momentum=momentum)
        with (
            scripted(CODEC, UNCOMPRESSED, UNCOMPRESSED),
            automatic(module, optimizer, min_ratio=0.05) as (model, handle),
        ):
            for step in range(6):
                train(model, rank, range(step, step + 1), optimizer=optimizer)
            here = {"mode": mode_of(handle)}
            here["saved"] = about(handle.state_dict())["schedule"]["setting"]
            handle.load_state_dict(None, policy="drop")
            modes = []
            for step in range(8):
                modes.append(mode_of(handle))
                train(model, rank, range(step, step + 1), optimizer=optimizer)
            found[f"momentum {momentum}"] = {**here, "modes": modes, "print": fingerprint(module)}
    return found


def each_its_own(rank: int, world_size: int) -> dict[str, Any]:
    """Go on after a failure: one rank had left the codec when the other one had not."""
    module = network()
    optimizer = sgd(module)
    with scripted(CODEC), automatic(module, optimizer, min_ratio=0.05) as (model, handle):
        train(model, rank, range(8), optimizer=optimizer)
        saved = handle.state_dict()
    (mine,) = saved.values()
    text = json.loads(mine["about"])
    text["step"] = 6 + 4 * rank
    if rank == 0:
        text["schedule"]["setting"] = UNCOMPRESSED
    mine["about"] = json.dumps(text)
    with scripted(), automatic(module, optimizer, min_ratio=0.05) as (model, handle):
        handle.load_state_dict(saved, policy="own")
        found = {"mode": mode_of(handle), "step": handle.step}
        train(model, rank, range(4), optimizer=optimizer)
        return {**found, "world": world_size, "print": fingerprint(module)}


def lost_in_a_look(rank: int, world_size: int) -> dict[str, Any]:
    """Rank 1 dies as it is about to tell its figures; say what the other sees."""
    del world_size
    module = network()
    optimizer = sgd(module)
    model = DistributedDataParallel(module, bucket_cap_mb=SMALL_BUCKETS)
    handle = gradwire.torch.ddp.attach(model, "auto", optimizer=optimizer)
    errors = []

    def median(clock: Any) -> float:
        if rank == 1:
            os._exit(7)
        return 0.1

    with mock.patch.object(StepClock, "median", median):
        for step in range(20):
            try:
                train(model, rank, range(step, step + 1), optimizer=optimizer)
            except ExchangeError as error:
                errors.append(str(error))
                if len(errors) == 2:
                    break
    return {"errors": errors, "repr": repr(handle), "kept": type(handle.error).__name__}


def refused(rank: int, world_size: int) -> list[str]:
    """What attach says of arguments that do not go with it."""
    del world_size
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
    return said
