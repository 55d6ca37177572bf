"""Optimizers that attach sees: what they apply, and what becomes of gradients that they do not."""

import contextlib
import functools
import gc
import math
import threading
import weakref
from typing import Any

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.optim import SGD, AdamW

import gradwire
import gradwire.torch.ddp
from gradwire.memory import MomentumCorrection
from gradwire.sparsify import TopK
from gradwire.torch.ddp import ExchangeError, GradientError, Handle, UpdateError
from tests.distributed.scenarios.common import (
    SMALL_BUCKETS,
    batch,
    fingerprint,
    network,
    plain,
    reaches,
)


def codec_of(kind: str, ratio: float = 0.05) -> Any:
    """A codec that leaves something for the optimizer to know."""
    if kind == "momentum":
        memory = MomentumCorrection(momentum=0.9, masking=ratio < 1.0)
        return gradwire.Codec(sparsify=TopK(ratio=ratio), memory=memory)
    if kind == "adam":
        return gradwire.adam(ratio=ratio)
    return gradwire.topk(ratio=ratio)


def optimizer_of(kind: str, parameters: Any, lr: float = 0.05) -> Any:
    """The optimizer that goes with it."""
    if kind == "momentum":
        return SGD(parameters, lr=lr, momentum=0.9, weight_decay=0.01)
    if kind == "adam":
        return AdamW(parameters, lr=0.1 * lr, weight_decay=0.1)
    return torch.optim.SGD(parameters, lr=lr)


class Run:
    """A model with a codec and an optimizer that know of each other."""

    def __init__(self, kind: str, *, ratio: float = 0.05, seed: int = 0, **ddp: Any) -> None:
        self.model: Any = DistributedDataParallel(
            network(seed), **{"bucket_cap_mb": SMALL_BUCKETS, **ddp}
        )
        self.optimizer = optimizer_of(kind, self.model.parameters())
        codec = codec_of(kind, ratio)
        self.handle: Handle = gradwire.torch.ddp.attach(self.model, codec, optimizer=self.optimizer)

    def loss(self, rank: int, step: int) -> torch.Tensor:
        inputs, targets = batch(rank, step)
        loss: torch.Tensor = nn.functional.mse_loss(self.model(inputs), targets)
        return loss

    def backward(self, rank: int, step: int, *, exchange: bool = True) -> None:
        with contextlib.nullcontext() if exchange else self.model.no_sync():
            self.loss(rank, step).backward()

    def train(self, rank: int, steps: range, *, exchange: bool = True) -> None:
        for step in steps:
            self.optimizer.zero_grad()
            self.backward(rank, step, exchange=exchange)
            self.optimizer.step()

    def saved(self) -> Any:
        return plain(self.handle.state_dict()), fingerprint(self.model)


def all_sent(rank: int, world_size: int, nesterov: bool, dense_first: bool) -> float:
    """Momentum on each rank and everything sent, against torch's SGD; two groups, a schedule."""
    warm_up: dict[str, Any] = {"schedule": gradwire.schedule.DenseWarmUp(1)} if dense_first else {}
    found = []
    for compressed in (True, False):
        model = DistributedDataParallel(network(), bucket_cap_mb=SMALL_BUCKETS)
        groups: list[dict[str, Any]] = [
            {"params": [each for each in model.parameters() if each.ndim > 1]},
            {"params": [each for each in model.parameters() if each.ndim < 2], "weight_decay": 0.0},
        ]
        options: dict[str, Any] = {
            "lr": 0.1,
            "momentum": 0.9,
            "weight_decay": 0.01,
            "nesterov": nesterov,
        }
        optimizer: Any = (SGD if compressed else torch.optim.SGD)(groups, **options)
        schedule = torch.optim.lr_scheduler.StepLR(optimizer, 3, 0.5)
        handle = None
        if compressed:
            memory = MomentumCorrection(momentum=0.9, nesterov=nesterov, masking=False)
            codec = gradwire.Codec(sparsify=TopK(ratio=1.0), memory=memory)
            handle = gradwire.torch.ddp.attach(model, codec, optimizer=optimizer, **warm_up)
        for step in range(8):
            if handle is not None:
                handle.epoch(step // 4)
            inputs, targets = batch(rank, step)
            optimizer.zero_grad()
            nn.functional.mse_loss(model(inputs), targets).backward()
            optimizer.step()
            schedule.step()
        if handle is not None:
            handle.detach()
        found.append([each.detach() for each in model.parameters()])
    return max(float((a - b).abs().max()) for a, b in zip(*found, strict=True))


def _refused(act: Any) -> str:
    try:
        act()
    except UpdateError as error:
        return str(error)
    return ""


def accumulating(rank: int, world_size: int, kind: str, ddp: dict[str, Any]) -> dict[str, Any]:
    """Two passes without zero_grad() are refused; then training goes on as if they never were."""
    found: dict[str, Any] = {}
    prints = []
    for mistaken in (False, True):
        run = Run(kind, **ddp)
        run.train(rank, range(3))
        if mistaken:
            before = run.handle.report().collectives
            frozen = fingerprint(run.model)
            found["errors"] = [_refused(functools.partial(run.backward, rank, 50))]
            found["collectives"] = run.handle.report().collectives * 3 - before * 3
            found["frozen"] = frozen == fingerprint(run.model)
            run.optimizer.zero_grad()
            run.backward(rank, 51)
            found["errors"].append(_refused(functools.partial(run.backward, rank, 52)))
            run.optimizer.zero_grad()
            found["stepped"] = run.handle.step
        run.train(rank, range(3, 6))
        prints.append(run.saved())
        run.handle.detach()
    return {**found, "same": prints[0] == prints[1], "print": prints[1][1]}


def mixed_without_exchange(rank: int, world_size: int, kind: str) -> str:
    """A pass within no_sync() on top of what the last one brought: step() refuses it."""
    run = Run(kind)
    run.train(rank, range(2))
    run.backward(rank, 50, exchange=False)
    before = fingerprint(run.model)
    try:
        run.optimizer.step()
        text = "applied"
    except UpdateError as error:
        text = str(error)
    assert before == fingerprint(run.model)
    run.train(rank, range(2, 4))
    run.handle.detach()
    return text


def exchanged_by_the_step(
    rank: int, world_size: int, kind: str, ddp: dict[str, Any]
) -> dict[str, Any]:
    """Passes within no_sync() whose gradients step() exchanges, against passes as usual."""
    prints = []
    for exchange in (True, False):
        run = Run(kind, **ddp)
        run.train(rank, range(5), exchange=exchange)
        run.train(rank, range(5, 7))
        prints.append(run.saved())
        run.handle.detach()
    sums = []
    for last in (True, False):
        run = Run(kind, **ddp)
        for step in range(4):
            run.optimizer.zero_grad()
            for part in range(3):
                run.backward(rank, 3 * step + part, exchange=last and part == 2)
            run.optimizer.step()
        sums.append(fingerprint(run.model))
        run.handle.detach()
    run = Run(kind, **ddp)
    norms = []
    for step in range(5):
        run.optimizer.zero_grad()
        run.backward(rank, step, exchange=False)
        run.backward(rank, 20 + step, exchange=False)
        nn.utils.clip_grad_norm_(run.model.parameters(), 0.01)
        norms.append(
            float(torch.stack([each.grad.norm() for each in run.model.parameters()]).norm())
        )
        run.optimizer.step()
    clipped = fingerprint(run.model)
    run.handle.detach()
    return {
        "same": prints[0] == prints[1] and sums[0] == sums[1],
        "print": prints[1][1] + sums[0],
        "clipped": clipped,
        "norms": norms,
    }


def paused_then_applied(rank: int, world_size: int, kind: str) -> dict[str, Any]:
    """Combine the gradients of two paused passes, and let the optimizer apply what comes out."""
    run = Run(kind)
    run.train(rank, range(2))
    for step in range(2, 6):
        with run.handle.paused():
            run.optimizer.zero_grad()
            run.backward(rank, step)
            first = [each.grad.clone() for each in run.model.parameters()]
            run.optimizer.zero_grad()
            run.backward(rank, 30 + step)
        for each, other in zip(run.model.parameters(), first, strict=True):
            each.grad.add_(other)
        run.optimizer.step()
    run.train(rank, range(6, 8))
    found = {"steps": run.handle.step, "print": fingerprint(run.model)}
    run.handle.detach()
    return found


def _clear_by_hand(run: Run) -> None:
    for each in run.model.parameters():
        each.grad = None


def thrown_away(rank: int, world_size: int, kind: str, ddp: dict[str, Any]) -> dict[str, Any]:
    """Passes that are cleared instead of applied, in every way that programs clear them."""
    found = []
    ways: list[Any] = [
        lambda run: run.optimizer.zero_grad(),
        lambda run: run.optimizer.zero_grad(set_to_none=False),
        lambda run: run.model.zero_grad(),
        _clear_by_hand,
        lambda run: (run.handle.discard(), run.optimizer.zero_grad()),
        lambda run: (run.handle.state_dict(), run.optimizer.zero_grad()),
        lambda run: (run.optimizer.zero_grad(), run.backward(rank, 70), run.model.zero_grad()),
        lambda run: (run.optimizer.zero_grad(), run.backward(rank, 70, exchange=False)),
    ]
    for waste in (False, True):
        run = Run(kind, **ddp)
        for step, way in enumerate(ways):
            run.train(rank, range(step, step + 1))
            if waste:
                run.optimizer.zero_grad()
                run.backward(rank, 50 + step)
                way(run)
        run.train(rank, range(len(ways), len(ways) + 2))
        found.append((run.saved(), run.handle.step))
        run.handle.detach()
    return {"same": found[0] == found[1], "print": found[0][0][1], "steps": found[1][1]}


def saved_before_the_step(rank: int, world_size: int, kind: str) -> dict[str, Any]:
    """A checkpoint is one of what was applied; what was undone for it cannot be applied after."""
    run = Run(kind)
    run.train(rank, range(3))
    before = plain(run.handle.state_dict())
    run.optimizer.zero_grad()
    run.backward(rank, 3)
    found: dict[str, Any] = {"same": before == plain(run.handle.state_dict())}
    try:
        run.optimizer.step()
        found["error"] = ""
    except UpdateError as error:
        found["error"] = str(error)
    run.train(rank, range(3, 5))
    found["print"] = fingerprint(run.model)
    run.handle.detach()
    return found


def at_odds(rank: int, world_size: int, kind: str, what: str) -> str:
    """Only rank 0 makes a step, or runs its passes within no_sync()."""
    run = Run(kind)
    run.train(rank, range(2))
    try:
        run.optimizer.zero_grad()
        run.backward(rank, 2, exchange=what != "no_sync" or rank != 0)
        if what != "step" or rank == 0:
            run.optimizer.step()
        run.train(rank, range(3, 5))
    except (ExchangeError, GradientError) as error:
        return str(error)
    return ""


def letting_go(rank: int, world_size: int) -> dict[str, Any]:
    """Forget a model without detaching, and keep its optimizer; then forget that, too."""
    others = set(threading.enumerate())
    run = Run("momentum")
    run.train(rank, range(2))
    new = set(threading.enumerate()) - others
    threads = [each for each in new if each.name.startswith("gradwire")]
    assert threads
    kept, weight = weakref.ref(run.handle), weakref.ref(run.model.module[0].weight)
    optimizer = run.optimizer
    del run

    def ended() -> bool:
        gc.collect()
        return not any(thread.is_alive() for thread in threads)

    alive = 0 if reaches(ended) else sum(thread.is_alive() for thread in threads)
    links = len(optimizer._optimizer_step_pre_hooks)
    del optimizer
    gc.collect()
    return {
        "alive": alive,
        "links": links,
        "handle": kept() is not None,
        "weight": weight() is not None,
    }


def one_optimizer_for_two(rank: int, world_size: int, kind: str) -> tuple[str, str]:
    """Two models share an optimizer, which also has a parameter of neither."""
    models = [DistributedDataParallel(network(seed)) for seed in (1, 2)]
    alone = nn.Parameter(torch.ones(2000))
    parameters = [each for model in models for each in model.parameters()]
    optimizer = optimizer_of(kind, [*parameters, alone])
    codec = codec_of(kind)
    handles = [gradwire.torch.ddp.attach(each, codec, optimizer=optimizer) for each in models]
    for step in range(5):
        inputs, targets = batch(rank, step)
        optimizer.zero_grad()
        difference = models[0](inputs) * models[1](inputs) - targets
        (difference.square().mean() + alone.square().mean()).backward()
        optimizer.step()
    for handle in handles:
        handle.detach()
    assert float(alone.detach().max()) < 1.0
    return fingerprint(models[0]), fingerprint(models[1])


def joining(rank: int, world_size: int, kind: str) -> str:
    """One rank has fewer inputs than the others."""
    run = Run(kind)
    with run.model.join():
        run.train(rank, range(3 + rank))
    found = fingerprint(run.model)
    # As in plain DDP, ranks without inputs made no steps: the optimizer's own state is behind.
    run.optimizer.state.clear()
    run.train(rank, range(10, 12))
    found += fingerprint(run.model)
    run.handle.detach()
    return found


def disagreeing(rank: int, world_size: int) -> list[str]:
    """Optimizers with other options on each rank."""
    texts = []
    for options in (
        {"lr": 0.1 * (rank + 1)},
        {"betas": (0.9, 0.99 + 0.001 * rank)},
        {"weight_decay": 0.1 * rank},
        {"of the program": math.inf if rank else 1.0},
    ):
        model = DistributedDataParallel(network())
        group = {"params": list(model.parameters()), "the same": -math.inf, **options}
        optimizer = AdamW([group])
        try:
            gradwire.torch.ddp.attach(model, gradwire.topk(0.05), optimizer=optimizer)
            texts.append("")
        except ValueError as error:
            texts.append(str(error))
    model = DistributedDataParallel(network())
    parameters = list(model.parameters())
    optimizer = AdamW(parameters[::-1] if rank else parameters)
    try:
        gradwire.torch.ddp.attach(model, gradwire.adam(), optimizer=optimizer)
    except ValueError as error:
        texts.append(str(error))
    return texts


def adversaries(rank: int, world_size: int, kind: str, how: str) -> dict[str, Any]:
    """A GAN whose generator's pass finds what the discriminator's step has applied in ``.grad``.

    As tutorials write it, which is refused; or these are cleared first, or that pass is paused.
    """
    torch.manual_seed(0)
    generator = nn.Sequential(nn.Linear(4, 64), nn.Tanh(), nn.Linear(64, 32))
    discriminator = nn.Sequential(nn.Linear(32, 64), nn.Tanh(), nn.Linear(64, 1))
    players: list[Any] = [
        DistributedDataParallel(each, bucket_cap_mb=SMALL_BUCKETS)
        for each in (generator, discriminator)
    ]
    made, judged = players
    optimizers = [optimizer_of(kind, each.parameters()) for each in players]
    handles = [
        gradwire.torch.ddp.attach(each, codec_of(kind), optimizer=optimizer, min_numel=32)
        for each, optimizer in zip(players, optimizers, strict=True)
    ]
    random = torch.Generator().manual_seed(rank)
    error = nn.functional.binary_cross_entropy_with_logits
    ones, zeros = torch.ones(8, 1), torch.zeros(8, 1)
    for _ in range(6):
        judged.zero_grad()
        with judged.no_sync():
            error(judged(torch.randn(8, 32, generator=random)), ones).backward()
        fake = made(torch.randn(8, 4, generator=random))
        error(judged(fake.detach()), zeros).backward()
        optimizers[1].step()
        made.zero_grad()
        if how == "cleared":
            judged.zero_grad()
        with handles[1].paused() if how == "paused" else contextlib.nullcontext():
            refused = _refused(error(judged(fake), ones).backward)
        if refused:
            break
        optimizers[0].step()
    found: dict[str, Any] = {"error": refused}
    judged.zero_grad()
    found["states"] = [plain(each.state_dict()) for each in handles]
    found["prints"] = [fingerprint(each) for each in players]
    for each in handles:
        each.detach()
    return found
