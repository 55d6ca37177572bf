"""Loops that step another optimizer than the attached one, and loops that only seem to."""

import contextlib
import copy
import functools
from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.distributed.checkpoint.state_dict import get_optimizer_state_dict
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.optim.optimizer import _global_optimizer_pre_hooks
from torch.optim.swa_utils import AveragedModel

import gradwire
import gradwire.torch.ddp
from gradwire.torch.ddp import UpdateError
from tests.distributed.scenarios.common import attached, batch, fingerprint, network
from tests.distributed.scenarios.optimizing import Run, codec_of, optimizer_of


def _refused(act: Callable[[], Any]) -> str:
    try:
        act()
    except UpdateError as error:
        return str(error)
    return ""


def another(rank: int, world_size: int, kind: str) -> dict[str, Any]:
    """Optimizers that are made where the first one should have gone on; then it does."""
    run, texts = Run(kind), {}
    makes: dict[str, Callable[[Any], Any]] = {
        "anew": lambda model: optimizer_of(kind, model.parameters()),
        "of torch": lambda model: torch.optim.Adam(model.parameters()),
        "of a part": lambda model: torch.optim.SGD(model.module[3].parameters(), lr=0.1),
    }
    run.train(rank, range(2))
    for what, make in makes.items():
        other = make(run.model)
        if what == "anew":
            other.load_state_dict(copy.deepcopy(run.optimizer.state_dict()))
        run.model.zero_grad()
        run.backward(rank, 2)
        before = fingerprint(run.model)
        texts[what] = _refused(other.step)
        assert before == fingerprint(run.model)
    steps = run.handle.step
    run.train(rank, range(2, 4))
    replaced = optimizer_of(kind, run.model.parameters())
    replaced.load_state_dict(run.optimizer.state_dict())
    saved = run.handle.state_dict()
    run.handle.detach()
    run.optimizer = replaced
    run.handle = gradwire.torch.ddp.attach(run.model, codec_of(kind), optimizer=replaced)
    run.handle.load_state_dict(saved)
    run.train(rank, range(4, 6))
    whole = Run(kind)
    whole.train(rank, range(6))
    same = whole.saved() == run.saved()
    run.handle.detach()
    whole.handle.detach()
    run.backward(rank, 6)
    torch.optim.SGD(run.model.parameters(), lr=0.1).step()  # nobody claims it
    return {"texts": texts, "steps": steps, "same": same, "print": fingerprint(run.model)}


class Sharpness(torch.optim.Optimizer):
    """Steps another optimizer, which it has as an attribute."""

    def __init__(self, inner: torch.optim.Optimizer) -> None:
        super().__init__([each for group in inner.param_groups for each in group["params"]], {})
        self.inner = inner

    def step(self, closure: Any = None) -> Any:
        return self.inner.step(closure)


def legitimate(rank: int, world_size: int, how: str) -> dict[str, Any]:
    """Programs in which several optimizers have the parameters, or make steps, as they may."""
    module = network()
    optimizer: Any = torch.optim.SGD(module.parameters(), lr=0.05)
    if how == "zero":
        optimizer = ZeroRedundancyOptimizer(module.parameters(), torch.optim.SGD, lr=0.05)
    if how == "lbfgs":
        optimizer = torch.optim.LBFGS(module.parameters(), lr=0.05, max_iter=6)
    stepped = Sharpness(optimizer) if how == "wrapped" else optimizer
    options = {"optimizer": optimizer}
    with attached(module, gradwire.topk(0.1), options=options) as (model, handle):
        averaged = AveragedModel(module)

        def backward(step: int) -> torch.Tensor:
            optimizer.zero_grad()
            inputs, targets = batch(rank, step)
            loss: torch.Tensor = nn.functional.mse_loss(model(inputs), targets)
            loss.backward()
            return loss

        for step in range(5):
            if how == "two":  # of which one steps what was only averaged
                with handle.paused():
                    backward(step)
                torch.optim.SGD(module.parameters(), lr=0.01).step()
            if how == "checkpoint":  # which makes a step with gradients of zero
                optimizer.zero_grad()
                other = torch.optim.AdamW(module.parameters())
                get_optimizer_state_dict(model, other)
            if how == "lbfgs":
                stepped.step(functools.partial(backward, step))
            else:
                backward(step)
                stepped.step()
            averaged.update_parameters(module)
        made = handle.step
    return {"steps": made, "print": fingerprint(module)}


def unstepped(rank: int, world_size: int, kind: str, how: str) -> dict[str, Any]:
    """Passes that the attached optimizer does not apply; something else may train the model."""
    run, text, passes = Run(kind), "", 0
    run.train(rank, range(2))
    for step in range(2, 10):
        run.model.zero_grad()
        pausing = run.handle.paused() if how == "paused" else contextlib.nullcontext()
        try:
            with pausing:
                run.backward(rank, step)
        except UpdateError as error:
            text = str(error)
            break
        passes += 1
        if how == "discarded":
            run.handle.discard()
        if how != "probes":
            for each in run.model.parameters():
                each.data.add_(each.grad, alpha=-0.01)
        if how == "sometimes" and step % 3 == 2:
            run.optimizer.step()
    run.model.zero_grad()
    run.train(rank, range(10, 12))
    found = {"text": text, "passes": passes, "steps": run.handle.step}
    run.handle.detach()
    return {**found, "print": fingerprint(run.model), "hooks": len(_global_optimizer_pre_hooks)}
