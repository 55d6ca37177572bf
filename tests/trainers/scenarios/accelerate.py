"""Accelerate's own loop, with gradwire after ``prepare``."""

import contextlib
import copy
import os
import warnings
from collections.abc import Callable
from typing import Any

import torch
from accelerate import Accelerator
from accelerate.state import AcceleratorState
from accelerate.utils import GradientAccumulationPlugin, ProjectConfiguration
from torch import nn
from torch.optim import AdamW
from torch.utils.data import DataLoader, TensorDataset

import gradwire
import gradwire.torch.accelerate
from gradwire.torch.ddp import PairingWarning, UpdateError
from tests.distributed.scenarios.common import fingerprint, network, residuals
from tests.trainers.scenarios.programs import become

UPDATES = 6


def dataset(batches: int) -> TensorDataset:
    random = torch.Generator().manual_seed(7)
    inputs = torch.randn(8 * batches, 32, generator=random)
    return TensorDataset(inputs, inputs[:, :16].sin())


class Run:
    """What one process of a program has: prepared, and attached unless the codec is False."""

    def __init__(
        self,
        rank: int,
        world_size: int,
        codec: Any,
        *,
        seed: int = 0,
        accumulate: int | None = 1,
        precision: str = "no",
        scaler: bool = False,
        sgd: bool = False,
        fused: bool | None = None,
        attach: Any = None,
        **options: Any,
    ) -> None:
        if accumulate is not None:
            options["gradient_accumulation_steps"] = accumulate
        become(rank, world_size)
        self.accelerator = Accelerator(cpu=True, mixed_precision=precision, **options)
        if scaler:  # on a CPU, Accelerate makes none
            self.accelerator.scaler = torch.amp.GradScaler("cpu", init_scale=256.0)
        model = network(seed)
        optimizer: Any = (
            torch.optim.SGD(model.parameters(), lr=0.05)
            if sgd
            else AdamW(model.parameters(), lr=0.01, weight_decay=0.1, fused=fused)
        )
        schedule = torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.1, 4 * UPDATES)
        loader: Any = DataLoader(dataset(UPDATES * (accumulate or 1) * world_size), batch_size=8)
        self.model, self.optimizer, self.loader, self.schedule = self.accelerator.prepare(
            model, optimizer, loader, schedule
        )
        self.handle: Any = None
        warnings.simplefilter("error", PairingWarning)
        if codec is not False:
            self.handle = gradwire.torch.accelerate.attach(
                self.accelerator, self.model, codec, optimizer=self.optimizer, **attach or {}
            )

    def train(self, first: int, last: int, *, clip: float | None = None) -> list[bool]:
        """Train from one update to another; return which of them the scaler skipped."""
        one = self.accelerator
        skipped = []
        every = one.gradient_accumulation_steps
        batches = one.skip_first_batches(self.loader, first * every)
        for number, (inputs, targets) in enumerate(batches, first * every):
            if number == last * every:
                break
            local = one.no_sync(self.model) if clip is not None else contextlib.nullcontext()
            with one.accumulate(self.model), local:
                loss = nn.functional.mse_loss(self.model(inputs), targets)
                if one.process_index == 1 and number == self.bad:
                    loss = loss * torch.inf
                one.backward(loss)
                if clip is not None and one.sync_gradients:
                    one.clip_grad_norm_(self.model.parameters(), clip)
                self.optimizer.step()
                if one.sync_gradients:
                    skipped.append(one.optimizer_step_was_skipped)
                self.schedule.step()
                self.optimizer.zero_grad()
        return skipped

    bad = -1

    def end(self) -> tuple[str, Any]:
        left = residuals(self.handle) if self.handle is not None else {}
        print_ = fingerprint(self.model)
        if self.handle is not None:
            self.handle.detach()
        return print_, {name: each.tobytes() for name, each in left.items()}


def resume(
    rank: int, world_size: int, folder: str, codec: str = "None", **options: Any
) -> dict[str, Any]:
    """Train 6 updates; or 3, save, start again with another seed, and 3."""
    clip = options.pop("clip", None)
    made = eval(codec, {"gradwire": gradwire})
    whole = Run(rank, world_size, made, **options)
    whole.train(0, UPDATES, clip=clip)
    expected = whole.end()

    half = Run(rank, world_size, made, **options)
    half.train(0, UPDATES // 2, clip=clip)
    half.accelerator.save_state(folder)
    half.end()

    rest = Run(rank, world_size, made, seed=99, **options)
    rest.accelerator.load_state(folder)
    step = rest.handle.step
    rest.train(UPDATES // 2, UPDATES, clip=clip)
    found = rest.end()
    return {
        "parameters": found[0] == expected[0],
        "residuals": found[1] == expected[1],
        "left": any(any(each) for each in expected[1].values()),
        "step": step,
        "fingerprint": found[0],
    }


def dense(rank: int, world_size: int, **options: Any) -> tuple[str, str]:
    """Train without a codec, and with one that sends everything."""
    found = []
    for codec in (False, gradwire.topk(ratio=1.0)):
        run = Run(rank, world_size, codec, sgd=True, **options)
        run.train(0, UPDATES)
        found.append(run.end()[0])
    return found[0], found[1]


def scaled(rank: int, world_size: int) -> tuple[str, str]:
    """Train without a loss scaler, and with one whose scale is a power of two."""
    found = []
    for scaler in (False, True):
        run = Run(rank, world_size, None, scaler=scaler, fused=True)
        run.train(0, UPDATES)
        found.append(run.end()[0])
    return found[0], found[1]


def overflow(rank: int, world_size: int) -> dict[str, Any]:
    """One rank has an infinite gradient in one step, with a loss scaler."""
    run = Run(rank, world_size, gradwire.topk(ratio=0.05), scaler=True, sgd=True, accumulate=2)
    run.bad = 5
    skipped = run.train(0, UPDATES)
    scale = run.accelerator.scaler.get_scale()
    step = run.handle.step
    return {"skipped": skipped, "scale": scale, "step": step, "fingerprint": run.end()[0]}


def save(rank: int, world_size: int, folder: str, *, everywhere: bool, detach: bool) -> Any:
    """Save after 3 updates; return this rank's residuals."""
    options = ProjectConfiguration(folder, save_on_each_node=everywhere)
    run = Run(rank, world_size, gradwire.adam(ratio=0.02), project_config=options)
    run.train(0, 3)
    left = residuals(run.handle)
    if detach:
        run.handle.detach()
    run.accelerator.save_state(folder)
    run.handle.detach()
    return left


def load(rank: int, world_size: int, folder: str, nodes: bool) -> Any:
    """Load what another number of ranks saved; return this rank's residuals, and train on."""
    hierarchy = {"hierarchy": "node"} if nodes else {}
    run = Run(rank, world_size, gradwire.adam(ratio=0.02), seed=99, attach=hierarchy)
    assert run.handle.ranks_per_node == (world_size if nodes else 1)
    run.accelerator.load_state(folder)
    left = residuals(run.handle)
    run.train(3, 4)
    return left, run.handle.step, run.end()[0]


def attached_again(rank: int, world_size: int, folder: str) -> int:
    """Attach a second time: Accelerate knows one state, that of the new handle."""
    run = Run(rank, world_size, gradwire.adam(ratio=0.02))
    run.handle.detach()
    handle = gradwire.torch.accelerate.attach(
        run.accelerator, run.model, gradwire.adam(ratio=0.04), optimizer=run.optimizer
    )
    assert handle is not None
    run.handle = handle
    copied = copy.deepcopy(run.model)  # as for an average of its weights
    assert copied.module is not run.model.module
    run.train(0, 2)
    run.accelerator.save_state(folder)
    run.train(2, 3)
    run.accelerator.load_state(folder)
    step = handle.step
    run.end()
    return step


def refused(rank: int, world_size: int, folder: str) -> dict[str, str]:
    """Mistakes, and what they are answered."""
    said = {}

    def tried(name: str, call: Callable[[], Any]) -> None:
        with warnings.catch_warnings(record=True) as warned:
            warnings.simplefilter("always")
            try:
                said[name] = repr(call())
            except (TypeError, ValueError, UpdateError) as error:
                said[name] = f"{type(error).__name__}: {error}"
        said[name] += "".join(f" {each.category.__name__}: {each.message}" for each in warned)

    attach = gradwire.torch.accelerate.attach
    adam = gradwire.adam(ratio=0.02)
    run = Run(rank, world_size, adam)
    run.train(0, 2)
    run.accelerator.save_state(f"{folder}/two")
    run.end()
    run = Run(rank, world_size, False)
    inner = network()
    tried("not prepared", lambda: attach(run.accelerator, inner, adam, optimizer=run.optimizer))
    tried(
        "plain attach", lambda: gradwire.torch.ddp.attach(run.model, adam, optimizer=run.optimizer)
    )
    every = GradientAccumulationPlugin(num_steps=2, sync_each_batch=True)
    run = Run(rank, world_size, adam, gradient_accumulation_plugin=every, accumulate=None)
    tried("every pass", lambda: run.train(0, 2))
    run.end()
    saved = dict(os.environ)
    for name in ("RANK", "LOCAL_RANK", "WORLD_SIZE"):
        del os.environ[name]
    AcceleratorState._reset_state(reset_partial_state=True)
    alone = Accelerator(cpu=True)
    given = network()
    loader: Any = DataLoader(dataset(UPDATES), batch_size=8)
    optimizer = AdamW(given.parameters(), lr=0.01)
    schedule = torch.optim.lr_scheduler.LinearLR(optimizer)
    model, _, _, _ = alone.prepare(given, optimizer, loader, schedule)
    tried("one process", lambda: attach(alone, model, adam))
    tried("one process loads", lambda: alone.load_state(f"{folder}/two"))
    tried("one process saves", lambda: alone.save_state(f"{folder}/one{rank}"))
    os.environ |= saved
    run = Run(rank, world_size, adam)
    tried("two load", lambda: run.accelerator.load_state(f"{folder}/one0"))
    run.end()
    return said
