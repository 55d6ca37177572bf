"""An optimizer that gradwire has distributed, beside Horovod's own."""

import io
import os
import signal
import time
import warnings
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any, Self

import horovod.common.exceptions as hvd_errors
import horovod.torch as hvd
import torch
from torch import nn
from torch.optim import SGD, AdamW

import gradwire
import gradwire.torch.horovod as gh
from gradwire.schedule import WarmUp
from gradwire.torch.horovod.optimizer import Distributed
from tests.distributed.scenarios.common import (
    Given,
    batch,
    bits,
    fingerprint,
    gradients_of,
    integers,
    network,
    plain,
    reaches,
    residuals,
)

DENSE = gradwire.topk(ratio=1.0)
SPARSE = gradwire.topk(ratio=0.05)
SUITED = "suited"
"""No codec: that which suits the optimizer. None stands for Horovod's own optimizer."""


def sgd(model: nn.Module, **options: Any) -> torch.optim.SGD:
    return torch.optim.SGD(model.parameters(), **{"lr": 0.05, **options})


class Run:
    """A small network under one of the two distributed optimizers."""

    def __init__(
        self,
        codec: Any = None,
        kind: Callable[..., Any] = torch.optim.SGD,
        *,
        model: nn.Module | None = None,
        wrap: dict[str, Any] | None = None,
        **options: Any,
    ) -> None:
        warnings.simplefilter("ignore", gh.PairingWarning)
        self.model = network() if model is None else model
        given = kind(self.model.parameters(), **{"lr": 0.05, **options})
        named = list(self.model.named_parameters())
        made: Any = hvd.DistributedOptimizer
        arguments = wrap or {}
        if codec == SUITED:
            made = gh.DistributedOptimizer
        elif codec is not None:
            made, arguments = gh.DistributedOptimizer, {"codec": codec, **arguments}
        self.optimizer = made(given, named, **arguments)
        self.handle: Any = getattr(self.optimizer, "handle", None)

    def backward(self, rank: int, step: int, scaler: Any = None, factor: float = 1.0) -> None:
        inputs, targets = batch(rank, step)
        loss = factor * nn.functional.mse_loss(self.model(inputs), targets)
        (loss if scaler is None else scaler.scale(loss)).backward()

    def train(self, rank: int, steps: range, passes: int = 1) -> Self:
        for step in steps:
            self.optimizer.zero_grad()
            for each in range(passes):
                self.backward(rank, 1000 * each + step)
            self.optimizer.step()
        return self

    def end(self) -> str:
        if self.handle is not None:
            self.handle.detach()
        return fingerprint(self.model)


def apart(one: nn.Module, other: nn.Module) -> float:
    """Return the largest difference of two models' parameters."""
    pairs = zip(one.parameters(), other.parameters(), strict=True)
    return max((a - b).abs().max().item() for a, b in pairs)


def parity(rank: int, world_size: int) -> dict[str, float]:
    """Train with everything sent, and with Horovod's own optimizer; return the differences."""
    found = {}
    cases: dict[str, Any] = {
        "plain": {},
        "groups": {"groups": 3},
        "passes": {"backward_passes_per_step": 2},
        "sum": {"op": hvd.Sum},
    }
    for name, arguments in cases.items():
        runs: list[Run] = []
        for codec in (None, DENSE):
            model = network()
            run = Run(codec, momentum=0.9, weight_decay=0.01, model=model, wrap=arguments)
            passes: Any = arguments.get("backward_passes_per_step", 1)
            runs.append(run.train(rank, range(3), passes))
        if name == "groups":
            assert runs[1].handle.metrics()["collectives"] == 3 * 3
        found[name] = apart(runs[0].model, runs[1].model)
        for run in runs:
            run.end()
    dense, adam = (
        Run(codec, kind, lr=1e-3).train(rank, range(5))
        for codec, kind in ((None, torch.optim.AdamW), (DENSE, AdamW))
    )
    assert isinstance(adam.optimizer, torch.optim.AdamW)
    found["AdamW"] = apart(dense.model, adam.model)
    adam.end()
    return found


def replicas(rank: int, world_size: int) -> dict[str, Any]:
    """Train with several codecs; return fingerprints, and what the report says."""
    cases: dict[str, Any] = {
        "topk": (SPARSE, torch.optim.SGD, {}),
        "adam": (gradwire.adam(ratio=0.05), AdamW, {"lr": 1e-3}),
        "dgc": (gradwire.dgc(ratio=0.05), SGD, {"momentum": 0.9}),
        "leader": (gradwire.scalecom(ratio=0.05), torch.optim.SGD, {}),
        "shared": (gradwire.randomk(ratio=0.05), torch.optim.SGD, {}),
        "bfloat16": (
            gradwire.Codec(
                sparsify=gradwire.sparsify.All(),
                quantize=gradwire.quantize.BFloat16(),
                exchange=gradwire.exchange.AllReduce(),
            ),
            torch.optim.SGD,
            {},
        ),
        "low memory": (
            gradwire.Codec(
                sparsify=gradwire.sparsify.TopK(ratio=0.05),
                memory=gradwire.memory.Residual(low_memory=True),
            ),
            torch.optim.SGD,
            {},
        ),
    }
    found: dict[str, Any] = {}
    for name, (codec, kind, options) in cases.items():
        run = Run(codec, kind, wrap={"groups": 2}, **options).train(rank, range(6))
        report = run.handle.report()
        assert (report.steps, report.carried_by) == (6, "horovod")
        assert run.handle.step == 6
        found[name] = run.end()
    return found


def dtypes(rank: int, world_size: int) -> dict[str, Any]:
    """Train with bfloat16 and other dtypes; sparse gradients, too; return what ranks share."""
    bf16 = Run(SPARSE, model=network().bfloat16())
    gh.broadcast_parameters(bf16.model.state_dict(), 0)
    for step in range(3):
        bf16.optimizer.zero_grad()
        inputs, targets = (each.bfloat16() for each in batch(rank, step))
        nn.functional.mse_loss(bf16.model(inputs), targets).backward()
        bf16.optimizer.step()
    found: dict[str, Any] = {"bfloat16": bf16.end()}

    kinds = {"a": torch.float64, "b": torch.float16, "bias": torch.bfloat16}
    mixed = Run(DENSE, model=Given(kinds), lr=1.0)
    given = integers(1, rank, 0)
    mixed.optimizer.zero_grad()
    mixed.model(given).backward()
    mixed.optimizer.step()
    every = [integers(1, each, 0) for each in range(world_size)]
    for name, each in mixed.model.named_parameters():
        mean = sum(one[name].double() for one in every) / world_size
        torch.testing.assert_close(-each.detach().double(), mean, rtol=1e-2, atol=1e-2)
    found["mixed"] = mixed.end()

    for dense in (False, True):
        own, horovods = [
            Run(codec, model=_embedding(), lr=0.1, wrap={"sparse_as_dense": dense})
            for codec in (DENSE, None)
        ]
        for run in (own, horovods):
            for step in range(3):
                run.optimizer.zero_grad()
                picked = torch.tensor([rank, step, 7])
                run.model(picked).square().sum().backward()
                run.optimizer.step()
        torch.testing.assert_close(own.model.weight, horovods.model.weight)
        found[f"sparse {dense}"] = own.end()
    return found


def _embedding() -> nn.Embedding:
    torch.manual_seed(3)
    return nn.Embedding(100, 20, sparse=True)


def clipping(rank: int, world_size: int) -> dict[str, Any]:
    """Clip averages between synchronize() and step(), and step without more ado after it."""
    run, horovods = Run(DENSE), Run(None)
    for each in (run, horovods):
        for step in range(3):
            each.optimizer.zero_grad()
            each.backward(rank, step)
            each.optimizer.synchronize()
            nn.utils.clip_grad_norm_(each.model.parameters(), 0.01)
            with each.optimizer.skip_synchronize():
                each.optimizer.step()
    found: dict[str, Any] = {"apart": apart(run.model, horovods.model)}
    run.optimizer.zero_grad(set_to_none=False)
    assert not any(each.grad is None or each.grad.any() for each in run.model.parameters())
    run.backward(rank, 3)
    run.optimizer.synchronize()
    run.optimizer.synchronize()  # nothing is exchanged twice
    run.optimizer.step()
    assert run.handle.step == 4
    said = run.optimizer.step(lambda: run.model(batch(rank, 4)[0]).sum())  # no backward pass in it
    assert torch.is_tensor(said)

    def closure() -> float:
        run.optimizer.zero_grad()
        run.backward(rank, 5)
        return 1.5

    assert run.optimizer.step(closure) == 1.5
    found["print"] = run.end()
    return found


def mistakes(rank: int, world_size: int) -> dict[str, Any]:
    """Make the mistakes that Horovod refuses, or does not; return what is said, and go on."""
    run, said = Run(SPARSE), {}

    def fails(name: str, act: Callable[[], Any]) -> None:
        try:
            act()
        except Exception as error:
            said[name] = f"{type(error).__name__}: {error}"
        else:
            said[name] = "nothing"

    run.backward(rank, 0)
    fails("clears in flight", run.optimizer.zero_grad)
    fails("loads in flight", lambda: run.optimizer.load_state_dict(run.optimizer.state_dict()))
    with run.optimizer.skip_synchronize():
        fails("skips in flight", run.optimizer.step)
    fails("too many passes", lambda: run.backward(rank, 0))
    run.optimizer.synchronize()
    run.optimizer.zero_grad()
    fails("adds a group", lambda: run.optimizer.add_param_group({"params": []}))
    fails("no passes", lambda: run.optimizer.set_backward_passes_per_step(0))
    run.backward(rank, 0)
    nn.utils.clip_grad_norm_(run.model.parameters(), 0.01)
    fails("clips in flight", run.optimizer.step)
    run.optimizer.zero_grad()
    scaler = torch.amp.GradScaler("cpu")  # of which gradwire was not told
    run.backward(rank, 0, scaler)
    fails("unscales in flight", lambda: scaler.step(run.optimizer))
    run.optimizer.synchronize()
    run.optimizer.zero_grad()
    run.optimizer.set_backward_passes_per_step(2)
    run.backward(rank, 0)
    run.optimizer.zero_grad()  # nothing was exchanged so far
    run.train(rank, range(2), passes=2)
    steps = run.handle.step
    return {"said": said, "print": run.end(), "steps": steps}


def refused(rank: int, world_size: int) -> dict[str, str]:
    """Pass what is not supported, or wrong; return what is said."""
    model = network()
    named = list(model.named_parameters())
    base = sgd(model)
    missing = hvd.ProcessSet([0])
    cases: dict[str, Any] = {
        "adasum": {"op": hvd.Adasum},
        "sum of steps": {
            "op": hvd.Sum,
            "codec": gradwire.adam(0.01),
            "optimizer": AdamW(model.parameters()),
        },
        "predivide": {"gradient_predivide_factor": 2.0},
        "passes": {"backward_passes_per_step": 0},
        "groups": {"groups": 0},
        "process set": {"process_set": missing},
        "no optimizer": {"optimizer": model},
        "lbfgs": {"optimizer": torch.optim.LBFGS(model.parameters())},
        "horovod's": {"optimizer": hvd.DistributedOptimizer(sgd(network()))},
        "no codec": {"codec": 0.01},
        "name missing": {"named_parameters": named[1:]},
        "name twice": {"named_parameters": [(named[0][0], each) for _, each in named]},
        "no AdamW": {"codec": gradwire.adam(0.01)},
        "seconds": {"timeout": 30},
        "no time": {"timeout": timedelta()},
        "no scaler": {"grad_scaler": torch.amp.GradScaler},
        "no number": {"min_numel": "1k"},
        "ranks differ": {"groups": 1 + rank},
    }
    found = {}
    for name, arguments in cases.items():
        given = {"optimizer": base, "named_parameters": named, "codec": SPARSE, **arguments}
        try:
            gh.DistributedOptimizer(given.pop("optimizer"), **given)
        except (TypeError, ValueError) as error:
            found[name] = f"{type(error).__name__}: {error}"
        else:
            found[name] = "nothing"
    first = gh.DistributedOptimizer(base, named, codec=SPARSE)
    for name, each in (("again", first), ("its original", base)):
        try:
            gh.DistributedOptimizer(each, named, codec=SPARSE)
        except ValueError as error:
            found[name] = f"{type(error).__name__}: {error}"
    try:
        gh.DistributedOptimizer(sgd(model), named, codec=SPARSE)
    except ValueError as error:
        found["of another"] = f"{type(error).__name__}: {error}"
    try:
        hvd.DistributedOptimizer(first, named)
    except ValueError as error:
        found["by both"] = f"{type(error).__name__}: {error}"
    first.handle.detach()
    other = gh.DistributedOptimizer(sgd(model), named, codec=SPARSE)
    del other  # nobody has it any more: that is enough
    second = gh.DistributedOptimizer(first, named, codec=DENSE)
    assert type(second).__mro__.count(Distributed) == 1
    second.handle.detach()
    return found


def bad_gradients(rank: int, world_size: int) -> dict[str, Any]:
    """A gradient of the last rank is not finite: with a scaler, beside a run without, and alone."""
    scalers = [torch.amp.GradScaler("cpu", init_scale=1024.0) for _ in range(2)]
    runs = [Run(SPARSE, wrap={"grad_scaler": each, "groups": 3}) for each in scalers]
    for which, (run, scaler) in enumerate(zip(runs, scalers, strict=True)):
        for step in (0, 1, 99, 2, 3):
            if step == 99 and which == 0:
                continue
            run.optimizer.zero_grad()
            bad = step == 99 and rank == world_size - 1
            run.backward(rank, step, scaler, float("inf") if bad else 1.0)
            run.optimizer.synchronize()
            with run.optimizer.skip_synchronize():
                scaler.step(run.optimizer)
            scaler.update()
    close = apart(runs[0].model, runs[1].model)
    found: dict[str, Any] = {"scaled apart": close, "scales": [s.get_scale() for s in scalers]}
    found["scaled steps"] = [run.handle.step for run in runs]
    found["scaled error"] = str(runs[1].handle.error)
    run, scaler = runs[1], scalers[1]
    run.optimizer.zero_grad()
    run.backward(rank, 4, scaler)
    try:
        scaler.step(run.optimizer)
    except gh.UpdateError as error:
        found["unsynchronized"] = str(error)
    for each in runs:
        each.end()

    clean, run = Run(SPARSE), Run(SPARSE)
    clean.train(rank, range(4))
    run.train(rank, range(2))
    before = plain(run.handle.state_dict())
    run.optimizer.zero_grad()
    run.backward(rank, 99, factor=float("nan") if rank == world_size - 1 else 1.0)
    try:
        run.optimizer.step()
    except gh.GradientError as error:
        found["error"] = [str(error.name), error.rank]
    found["restored"] = plain(run.handle.state_dict()) == before
    run.train(rank, range(2, 4))
    found["same"] = clean.end() == run.end()
    return found


def unused(rank: int, world_size: int) -> dict[str, Any]:
    """Parameters without gradients on some rank, or on all; gradients in another order."""
    run = Run(SPARSE, model=Given(), wrap={"groups": len(list(Given().parameters()))}, lr=1.0)
    names = ["a", "b", "c"]
    for step in range(3):
        run.optimizer.zero_grad()
        given = integers(0, rank, step)
        # One after another, each rank in another order; and the last rank has none for "c".
        order = names[rank % 3 :] + names[: rank % 3]
        for name in order:
            if (name, rank) != ("c", world_size - 1):
                run.model({name: given[name]}).backward()
        run.optimizer.step()
    found: dict[str, Any] = {"zero": not gradients_of(run.model)["bias"].any()}
    kept = residuals(run.handle)
    run.optimizer.zero_grad()
    run.model({"a": integers(0, rank, 3)["a"]}).backward()
    run.optimizer.step()
    now = residuals(run.handle)
    found["kept"] = {name: bool((kept[name] == now[name]).all()) for name in ("a", "b", "c")}
    run.model.b.requires_grad_(False)
    run.optimizer.zero_grad()
    run.model({"a": integers(0, rank, 4)["a"]}).backward()
    run.optimizer.step()
    found["frozen"] = run.model.b.grad is None
    run.model.b.requires_grad_(True)
    run.optimizer.zero_grad()
    run.model(integers(0, rank, 5)).backward()
    run.optimizer.step()
    found["print"] = run.end()
    return found


def process_sets(rank: int, world_size: int) -> dict[str, Any]:
    """Train on ranks 1 and 2 alone; the other one trains by itself."""
    members = hvd.add_process_set([1, 2])
    try:
        runs = [Run(each, wrap={"process_set": members}) for each in (DENSE, None, SPARSE)]
        for run in runs:
            run.train(rank, range(3))
        alone = runs[0].handle is None
        size = None if alone else runs[0].handle.world_size
        close = apart(runs[0].model, runs[1].model)
        prints = [run.end() for run in runs]
    finally:
        hvd.remove_process_set(members)
    return {"alone": alone, "size": size, "apart": close, "print": prints[2]}


def surroundings(rank: int, world_size: int) -> dict[str, Any]:
    """Schedulers, Horovod's broadcasts, copies, and a model under torch's other optimizers."""
    found: dict[str, Any] = {}
    runs = []
    for codec in (None, DENSE):
        model = network()
        early = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
        torch.optim.lr_scheduler.LambdaLR(early, lambda _: 1.0)  # before it is distributed
        run = Run(codec, lambda _, given=early, **__: given, model=model)
        late = torch.optim.lr_scheduler.StepLR(run.optimizer, 2, gamma=0.5)
        for step in range(5):
            run.train(rank, range(step, step + 1))
            late.step()
        found.setdefault("rates", []).append(run.optimizer.param_groups[0]["lr"])
        runs.append(run)
    found["apart"] = apart(runs[0].model, runs[1].model)

    # A state that rank 0 has loaded, and the others get from it.
    saved = runs[1].optimizer.state_dict()
    other = Run(DENSE, momentum=0.9, model=network(rank))
    if rank == 0:
        other.optimizer.load_state_dict(saved)
    hvd.broadcast_parameters(other.model.state_dict(), 0)
    gh.broadcast_optimizer_state(other.optimizer, 0)
    for fresh in (Run(SPARSE, momentum=0.9), Run(SUITED, AdamW)):
        hvd.broadcast_optimizer_state(fresh.optimizer, 0)
        gh.broadcast_optimizer_state(fresh.optimizer, 0)
        fresh.train(rank, range(2))
        found[type(fresh.optimizer).__name__] = fresh.end()
    (first, *_) = other.optimizer.state.values()
    found["momentum"] = bits(first["momentum_buffer"])
    other.train(rank, range(2))
    for run in (runs[1], other):
        run.end()
    found["print"] = fingerprint(other.model)
    return found


def habits(rank: int, world_size: int) -> dict[str, Any]:
    """AdamW with a scheduler from before, saved and resumed as a whole."""

    def begin() -> tuple[Run, Any]:
        model = network()
        base = AdamW(model.parameters(), lr=1e-2)
        scheduler = torch.optim.lr_scheduler.OneCycleLR(base, max_lr=1e-2, total_steps=20)
        return Run(SUITED, lambda _, **__: base, model=model), scheduler

    def train(run: Run, scheduler: Any, steps: range) -> None:
        for step in steps:
            run.train(rank, range(step, step + 1))
            scheduler.step()

    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        run, scheduler = begin()
        train(run, scheduler, range(4))
        file = io.BytesIO()
        parts: dict[str, Any] = {"model": run.model, "optimizer": run.optimizer}
        parts |= {"handle": run.handle, "scheduler": scheduler}
        torch.save({name: each.state_dict() for name, each in parts.items()}, file)
        train(run, scheduler, range(4, 8))
        file.seek(0)
        saved = torch.load(file, weights_only=True)
        other, scheduler = begin()
        parts = {"model": other.model, "optimizer": other.optimizer}
        parts |= {"handle": other.handle, "scheduler": scheduler}
        for name, each in parts.items():
            each.load_state_dict(saved[name])
        train(other, scheduler, range(4, 8))
    said = [str(each.message) for each in warned if "weights_only" not in str(each.message)]
    same = plain(run.handle.state_dict()) == plain(other.handle.state_dict())
    return {"same": same and run.end() == other.end(), "print": run.end(), "warned": said}


def controls(rank: int, world_size: int) -> dict[str, Any]:
    """What the handle does: pauses, discards, saves, loads, and lets go."""
    found: dict[str, Any] = {}
    run = Run(SPARSE, wrap={"schedule": WarmUp((0.25, 0.1)), "groups": 2}).train(rank, range(3))
    saved, prints = run.handle.state_dict(), fingerprint(run.model)
    weights = {name: each.clone() for name, each in run.model.state_dict().items()}
    every = run.handle.gathered_state_dict(None)
    found["gathered"] = sorted(every)
    run.handle.epoch(1)
    run.train(rank, range(3, 6))
    resumed = Run(SPARSE, wrap={"schedule": WarmUp((0.25, 0.1)), "groups": 2})
    resumed.model.load_state_dict(weights)
    resumed.handle.load_state_dict(saved)
    assert fingerprint(resumed.model) == prints
    resumed.handle.epoch(1)
    resumed.train(rank, range(3, 6))
    found["resumed"] = fingerprint(resumed.model) == fingerprint(run.model)
    assert plain(resumed.handle.state_dict()) == plain(run.handle.state_dict())

    before = plain(run.handle.state_dict())
    run.optimizer.zero_grad()
    run.backward(rank, 6)
    run.optimizer.synchronize()
    run.handle.discard()
    found["discarded"] = plain(run.handle.state_dict()) == before
    run.optimizer.zero_grad()
    dense = Run(None)
    dense.model.load_state_dict(run.model.state_dict())
    with run.handle.paused():
        run.train(rank, range(6, 8))
    dense.train(rank, range(6, 8))
    found["paused"] = apart(run.model, dense.model)
    assert plain(run.handle.state_dict()) == before

    # A pass that is thrown away, which the next one undoes.
    run.backward(rank, 8)
    run.optimizer.synchronize()
    run.optimizer.zero_grad()
    run.backward(rank, 9)
    run.optimizer.step()
    found["steps"] = run.handle.step
    run.handle.detach()
    dense.model.load_state_dict(run.model.state_dict())
    for each in (run, dense):
        each.train(rank, range(10, 12))
    found["detached"] = apart(run.model, dense.model)
    resumed.end()
    return found


def killed(rank: int, world_size: int, *, folder: str) -> dict[str, Any]:
    """Rank 1 is killed while the other one waits; return what every call says from then on."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)  # horovodrun ends the others, too
    names = ("epoch", "discard", "paused", "gathered", "merged", "load", "stopped", "plain")
    runs = {name: Run(SPARSE).train(rank, range(1)) for name in names}
    runs["steps"] = Run(gradwire.adam(ratio=0.05), AdamW).train(rank, range(1))
    ready = Path(folder, "ready")
    if rank == 1:
        assert reaches(ready.exists, 120.0)
        time.sleep(0.3)
        os.kill(os.getpid(), signal.SIGKILL)
    # So many that Horovod still answers them when the first one has failed.
    raw, *_ = [hvd.allgather_async(torch.zeros(4), name=f"after {i}") for i in range(2000)]
    ready.touch()

    def plainly() -> None:
        runs["plain"].handle.detach()
        runs["plain"].train(rank, range(1, 2))

    def pause() -> None:
        with runs["paused"].handle.paused():
            pass

    calls: dict[str, Callable[[], Any]] = {
        "step, waiting": lambda: runs["stopped"].train(rank, range(1, 2)),
        "Horovod's own, waiting": lambda: hvd.synchronize(raw),
        "Horovod's own": lambda: hvd.allgather(torch.zeros(4), name="later"),
        "step": lambda: runs["steps"].train(rank, range(1, 2)),
        "step again": lambda: runs["stopped"].train(rank, range(2, 3)),
        "step, detached": plainly,
        "epoch": lambda: runs["epoch"].handle.epoch(1),
        "epoch again": lambda: runs["epoch"].handle.epoch(1),
        "discard": runs["discard"].handle.discard,
        "paused": pause,
        "gathered_state_dict": runs["gathered"].handle.gathered_state_dict,
        "merged_state_dict": runs["merged"].handle.merged_state_dict,
        "load_state_dict": lambda: runs["load"].handle.load_state_dict(None, policy="drop"),
        "DistributedOptimizer": lambda: Run(SPARSE),
        "commit": lambda: gh.ElasticState(optimizer=runs["merged"].optimizer).commit(),
        "sync": lambda: gh.ElasticState(optimizer=runs["merged"].optimizer).sync(),
        "broadcast": lambda: gh.broadcast_parameters(runs["load"].model.state_dict(), 0),
    }
    found: dict[str, Any] = {}
    for name, call in calls.items():
        try:
            call()
        except Exception as error:
            found[name] = [type(error).__module__, type(error).__name__, str(error)]
            found[name] += [isinstance(error, hvd_errors.HorovodInternalError)]
        else:
            found[name] = None
    for run in runs.values():
        run.handle.detach()
    return {"said": found, "initialized": hvd.is_initialized()}


def elastic_state(rank: int, world_size: int) -> dict[str, Any]:
    """Commit, go on, return to the commit and meet again, as after an error of Horovod."""
    run = Run(SUITED, AdamW).train(rank, range(3))
    state = gh.ElasticState(model=run.model, optimizer=run.optimizer, at=3)
    state.commit()
    before, prints = residuals(run.handle), fingerprint(run.model)
    run.train(rank, range(3, 5))
    state.at = 5
    state.restore()
    found: dict[str, Any] = {"at": state.at, "back": fingerprint(run.model) == prints}
    try:
        run.optimizer.step()
    except ValueError as error:
        found["between"] = str(error)
    state.sync()
    handle = run.optimizer.handle
    found |= {"step": handle.step, "attached": handle.attached}
    for name, mine in residuals(handle).items():
        every = hvd.allreduce(torch.from_numpy(before[name]).double(), op=hvd.Sum, name=name)
        torch.testing.assert_close(torch.from_numpy(mine).double(), every / world_size)
    run.handle = handle
    run.train(rank, range(3, 5))
    return found | {"print": run.end()}
