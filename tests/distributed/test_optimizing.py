"""Optimizers that attach sees: only what they apply stays in the residuals, alike on all ranks."""

import contextlib
import copy
import functools
import gc
import math
import re
import threading
import warnings
import weakref

import pytest
import torch
from torch import nn
from torch.nn.functional import binary_cross_entropy_with_logits, mse_loss
from torch.nn.parallel import DistributedDataParallel
from torch.optim import LBFGS, SGD, Adam, AdamW
from torch.optim.optimizer import _global_optimizer_pre_hooks
from torch.optim.swa_utils import AveragedModel

import gradwire
import gradwire.torch.ddp
from gradwire.memory import MomentumCorrection
from gradwire.schedule import DenseWarmUp
from gradwire.sparsify import TopK
from gradwire.torch.ddp import ExchangeError, GradientError, UpdateError
from tests.distributed.ranks import alike, on, together
from tests.distributed.scenarios.common import (
    SMALL_BUCKETS,
    Run,
    attached,
    batch,
    fingerprint,
    network,
    plain,
    reaches,
    train,
)

KINDS = ["momentum", "adam"]
ALL_KINDS = [*KINDS, "plain"]
MODES = [{}, {"gradient_as_bucket_view": True}, {"find_unused_parameters": True}]


def codec_of(kind):
    """A codec that leaves something for the optimizer to know."""
    if kind == "momentum":
        memory = MomentumCorrection(momentum=0.9, masking=True)
        return gradwire.Codec(sparsify=TopK(ratio=0.05), memory=memory)
    return gradwire.adam(ratio=0.05) if kind == "adam" else gradwire.topk(ratio=0.05)


def optimizer_of(kind, parameters):
    """The optimizer that goes with it."""
    if kind == "momentum":
        return SGD(parameters, lr=0.05, momentum=0.9, weight_decay=0.01)
    if kind == "adam":
        return AdamW(parameters, lr=0.005, weight_decay=0.1)
    return SGD(parameters, lr=0.05)


def started(kind, ddp=None, **options):
    """A run with that codec and that optimizer."""
    return Run(codec_of(kind), functools.partial(optimizer_of, kind), ddp=ddp, **options)


@pytest.mark.parametrize(("nesterov", "dense_first"), [(False, True), (True, False)])
@on("two")
def test_momentum_on_the_ranks_is_sgd_if_everything_is_sent(rank, nesterov, dense_first):
    """Two groups, and a schedule; saved and loaded on the way."""

    def grouped(parameters):
        every = list(parameters)
        groups = [
            {"params": [each for each in every if each.ndim > 1]},
            {"params": [each for each in every if each.ndim < 2], "weight_decay": 0.0},
        ]
        return SGD(groups, lr=0.1, momentum=0.9, weight_decay=0.01, nesterov=nesterov)

    def go(backward, optimizer, steps, told=lambda _: None):
        schedule = torch.optim.lr_scheduler.StepLR(optimizer, 3, 0.5)
        for step in steps:
            told(step // 4)
            optimizer.zero_grad()
            backward(rank, step)
            optimizer.step()
            schedule.step()

    plain = DistributedDataParallel(network())

    def backward(rank, step):
        inputs, targets = batch(rank, step)
        mse_loss(plain(inputs), targets).backward()

    memory = MomentumCorrection(momentum=0.9, nesterov=nesterov, masking=False)
    codec = gradwire.Codec(sparsify=TopK(ratio=1.0), memory=memory)
    options = {"schedule": DenseWarmUp(1)} if dense_first else {}
    optimizer, saved = grouped(plain.parameters()), None
    for steps in (range(5), range(5, 9)):
        go(backward, optimizer, steps)
        with Run(codec, grouped, seed=steps.start, **options) as run:
            if saved is not None:
                run.load(saved)
            go(run.backward, run.optimizer, steps, run.handle.epoch)
            saved = run.save()
    both = zip(plain.parameters(), run.model.parameters(), strict=True)
    assert max(float((one - other).detach().abs().max()) for one, other in both) < 1e-6


@pytest.mark.parametrize("ddp", MODES, ids=str)
@pytest.mark.parametrize("kind", KINDS)
@on("two")
def test_accumulating_without_no_sync_is_refused_before_anything_is_compressed(rank, kind, ddp):
    """Then training goes on as if there had been no such passes."""
    saved = []
    for mistaken in (False, True):
        run = started(kind, ddp)
        run.train(rank, range(3))
        if mistaken:
            before = run.handle.report().collectives, fingerprint(run.model)
            with pytest.raises(UpdateError, match=r"no_sync\(\)"):
                run.backward(rank, 50)
            assert before == (run.handle.report().collectives, fingerprint(run.model))
            run.optimizer.zero_grad()
            run.backward(rank, 51)
            with pytest.raises(UpdateError, match=r"no_sync\(\)"):
                run.backward(rank, 52)
            run.optimizer.zero_grad()
            assert run.handle.step == 4, "the one that is thrown away"
        run.train(rank, range(3, 6))
        saved.append(run.state())
        run.end()
    assert saved[0] == saved[1]


@pytest.mark.parametrize("kind", ALL_KINDS)
@on("two")
def test_a_loss_scale_changes_no_bit_and_a_skipped_step_leaves_no_trace(rank, kind):
    states = []
    for enabled in (True, False):
        scaler = torch.amp.GradScaler("cpu", 1024.0, growth_interval=2, enabled=enabled)
        with started(kind, grad_scaler=scaler) as run:

            def step_with(step, factor=1.0, scaler=scaler, run=run):
                inputs, targets = batch(rank, step)
                run.optimizer.zero_grad()
                scaler.scale(mse_loss(run.model(inputs), targets) * factor).backward()
                scaler.step(run.optimizer)
                scaler.update()

            for step in range(6):
                if enabled and step == 3:
                    before = run.state()
                    step_with(50, torch.inf if rank == 1 else 1.0)
                    assert before == run.state()
                step_with(step)
            states.append(run.state())
    assert states[0] == states[1]


@pytest.mark.parametrize("kind", KINDS)
@on("two")
def test_a_loss_scaler_that_attach_was_not_given_is_told(rank, kind):
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    with warnings.catch_warnings(record=True) as caught, started(kind) as run:
        warnings.simplefilter("always")
        train(run.model, rank, range(3), scaler=scaler, optimizer=run.optimizer)
    texts = [str(each.message) for each in caught]
    assert sum("attach(..., grad_scaler=)" in each for each in texts) == 1


@pytest.mark.parametrize("kind", KINDS)
@on("two")
def test_a_gradient_on_top_of_an_update_is_not_applied(rank, kind):
    run = started(kind)
    run.train(rank, range(2))
    run.backward(rank, 50, exchange=False)
    before = fingerprint(run.model)
    with pytest.raises(UpdateError, match=r"zero_grad\(\) between passes"):
        run.optimizer.step()
    assert before == fingerprint(run.model)
    run.train(rank, range(2, 4))
    run.end()


@pytest.mark.full
@pytest.mark.parametrize("ddp", MODES, ids=str)
@pytest.mark.parametrize("kind", KINDS)
@on("ranks")
def test_a_step_exchanges_what_no_sync_left(rank, kind, ddp):
    saved, sums, norms = [], [], []
    for exchange in (True, False):
        run = started(kind, ddp)
        run.train(rank, range(5), exchange=exchange)
        run.train(rank, range(5, 7))
        saved.append(run.state())
        run.end()
    assert saved[0] == saved[1]
    for last in (True, False):
        run = started(kind, ddp)
        for step in range(4):
            run.optimizer.zero_grad()
            for part in range(3):
                run.backward(rank, 3 * step + part, exchange=last and part == 2)
            run.optimizer.step()
        sums.append(run.end())
    assert sums[0] == sums[1]
    run = started(kind, ddp)
    for step in range(5):
        run.optimizer.zero_grad()
        run.backward(rank, step, exchange=False)
        run.backward(rank, 20 + step, exchange=False)
        nn.utils.clip_grad_norm_(run.model.parameters(), 0.01)
        every = [each.grad.norm() for each in run.model.parameters()]
        norms.append(float(torch.stack(every).norm()))
        run.optimizer.step()
    assert max(norms) < 0.0101
    first, second, *_ = together(norms)
    assert first != second, "each rank clips its own gradients"
    run.end()


@pytest.mark.parametrize("kind", KINDS)
@on("two")
def test_a_step_exchanges_what_a_pause_averaged(rank, kind):
    """Combine the gradients of two paused passes, and apply what comes out."""
    run = started(kind)
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
    assert run.handle.step == 8
    run.end()


def clear_by_hand(run):
    for each in run.model.parameters():
        each.grad = None


@pytest.mark.full
@pytest.mark.parametrize("ddp", MODES, ids=str)
@pytest.mark.parametrize("kind", ALL_KINDS)
@on("ranks")
def test_passes_that_are_cleared_leave_no_trace(rank, kind, ddp):
    """In every way that programs clear them."""
    ways = [
        lambda run: run.optimizer.zero_grad(),
        lambda run: run.optimizer.zero_grad(set_to_none=False),
        lambda run: run.model.zero_grad(),
        clear_by_hand,
        lambda run: (run.handle.discard(), run.optimizer.zero_grad()),
        lambda run: (run.handle.state_dict(), run.optimizer.zero_grad()),
        lambda run: (run.optimizer.zero_grad(), run.backward(rank, 70), run.model.zero_grad()),
        lambda run: (run.optimizer.zero_grad(), run.backward(rank, 70, exchange=False)),
    ]
    saved = []
    for waste in (False, True):
        run = started(kind, ddp)
        for step, way in enumerate(ways):
            run.train(rank, range(step, step + 1))
            if waste:
                run.optimizer.zero_grad()
                run.backward(rank, 50 + step)
                way(run)
        run.train(rank, range(len(ways), len(ways) + 2))
        saved.append((run.state(), run.handle.step))
        run.end()
    assert saved[0] == saved[1]
    assert saved[1][1] == 10


@pytest.mark.parametrize("kind", KINDS)
@on("two")
def test_a_checkpoint_holds_only_what_was_applied(rank, kind):
    """What was undone for it cannot be applied after."""
    run = started(kind)
    run.train(rank, range(3))
    before = plain(run.handle.state_dict())
    run.optimizer.zero_grad()
    run.backward(rank, 3)
    assert before == plain(run.handle.state_dict())
    with pytest.raises(UpdateError, match="since been rolled back"):
        run.optimizer.step()
    run.train(rank, range(3, 5))
    run.end()


@pytest.mark.full
@pytest.mark.parametrize(
    ("what", "said"),
    [
        ("step", ["was not exchanged", "backward() with no step() after pass 2"]),
        ("no_sync", ["did not call step()", "was not exchanged"]),
    ],
)
@on("short_lived")
def test_ranks_at_odds_get_a_typed_error(rank, what, said):
    """Only rank 0 makes a step, or runs its passes within no_sync()."""
    run = started("momentum")
    run.train(rank, range(2))

    def go_on():
        run.optimizer.zero_grad()
        run.backward(rank, 2, exchange=what != "no_sync" or rank != 0)
        if what != "step" or rank == 0:
            run.optimizer.step()
        run.train(rank, range(3, 5))

    with pytest.raises((ExchangeError, GradientError), match=re.escape(said[rank])):
        go_on()


@on("two")
def test_an_optimizer_keeps_no_model_alive(rank):
    """Forget a model without detaching, and keep its optimizer; then forget that, too."""
    others = set(threading.enumerate())
    run = started("momentum")
    run.train(rank, range(2))
    new = set(threading.enumerate()) - others
    threads = [each for each in new if each.name.startswith("gradwire")]
    assert threads
    handle, weight = weakref.ref(run.handle), weakref.ref(run.model.module[0].weight)
    optimizer = run.optimizer
    del run

    def ended():
        gc.collect()
        return not any(thread.is_alive() for thread in threads)

    assert reaches(ended)
    assert not optimizer._optimizer_step_pre_hooks
    del optimizer
    gc.collect()
    assert handle() is None
    assert weight() is None


@pytest.mark.parametrize("kind", ALL_KINDS)
@on("two")
def test_two_models_may_share_an_optimizer(rank, kind):
    """It also has a parameter of neither."""
    models = [DistributedDataParallel(network(seed)) for seed in (1, 2)]
    alone = nn.Parameter(torch.ones(2000))
    parameters = [each for model in models for each in model.parameters()]
    optimizer = optimizer_of(kind, [*parameters, alone])
    with contextlib.ExitStack() as stack:
        for each in models:
            handle = gradwire.torch.ddp.attach(each, codec_of(kind), optimizer=optimizer)
            stack.enter_context(handle)
        for step in range(5):
            inputs, targets = batch(rank, step)
            optimizer.zero_grad()
            difference = models[0](inputs) * models[1](inputs) - targets
            (difference.square().mean() + alone.square().mean()).backward()
            optimizer.step()
    assert alone.max() < 1.0
    alike([fingerprint(each) for each in models])


@pytest.mark.parametrize("kind", ALL_KINDS)
@on("two")
def test_ranks_without_inputs_follow(rank, kind):
    run = started(kind)
    with run.model.join():
        run.train(rank, range(3 + rank))
    alike(fingerprint(run.model))
    # As in plain DDP, ranks without inputs made no steps: the optimizer's own state is behind.
    run.optimizer.state.clear()
    run.train(rank, range(10, 12))
    run.end()


@on("two")
def test_ranks_must_agree_on_the_optimizer(rank):
    model = DistributedDataParallel(network())
    parameters = list(model.parameters())
    turned = parameters[::-1] if rank else parameters
    for codec, group in (
        (gradwire.topk(0.05), {"lr": 0.1 * (rank + 1)}),
        (gradwire.topk(0.05), {"betas": (0.9, 0.99 + 0.001 * rank)}),
        (gradwire.topk(0.05), {"weight_decay": 0.1 * rank}),
        (gradwire.topk(0.05), {"of the program": math.inf if rank else 1.0}),
        (gradwire.adam(), {"params": turned}),
    ):
        optimizer = AdamW([{"params": parameters, "the same": -math.inf, **group}])
        with pytest.raises(ValueError, match="rank 1 and rank 0 attached with different optimizer"):
            gradwire.torch.ddp.attach(model, codec, optimizer=optimizer)


def adversaries(rank, kind, how):
    """A GAN whose generator's pass finds what the discriminator's step has applied in ``.grad``.

    As tutorials write it, which is refused; or these are cleared first, or that pass is paused.
    """
    torch.manual_seed(0)
    modules = [
        nn.Sequential(nn.Linear(4, 64), nn.Tanh(), nn.Linear(64, 32)),
        nn.Sequential(nn.Linear(32, 64), nn.Tanh(), nn.Linear(64, 1)),
    ]
    players = [DistributedDataParallel(each, bucket_cap_mb=SMALL_BUCKETS) for each in modules]
    made, judged = players
    optimizers = [optimizer_of(kind, each.parameters()) for each in players]
    handles = [
        gradwire.torch.ddp.attach(each, codec_of(kind), optimizer=optimizer, min_numel=32)
        for each, optimizer in zip(players, optimizers, strict=True)
    ]
    random = torch.Generator().manual_seed(rank)
    error, ones, zeros = binary_cross_entropy_with_logits, torch.ones(8, 1), torch.zeros(8, 1)
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
            if how == "tutorial":
                with pytest.raises(UpdateError, match=r"zero_grad\(\) between passes"):
                    error(judged(fake), ones).backward()
                break
            error(judged(fake), ones).backward()
        optimizers[0].step()
    judged.zero_grad()
    states = [plain(each.state_dict()) for each in handles]
    for each in handles:
        each.detach()
    return states, alike([fingerprint(each) for each in players])


@pytest.mark.parametrize("kind", KINDS)
@on("two")
def test_a_generator_may_pass_through_a_discriminator_that_is_cleared_or_paused(rank, kind):
    assert adversaries(rank, kind, "cleared") == adversaries(rank, kind, "paused")
    adversaries(rank, kind, "tutorial")


# Loops that step another optimizer than the attached one, and loops that only seem to ----------


@pytest.mark.parametrize("kind", ALL_KINDS)
@on("two")
def test_another_optimizer_than_the_attached_one_is_refused_at_its_first_step(rank, kind):
    run = started(kind)
    own = "torch.optim.AdamW" if kind == "adam" else "torch.optim.SGD"
    makes = {
        "anew": (own, lambda model: optimizer_of(kind, model.parameters())),
        "of torch": ("torch.optim.Adam", lambda model: Adam(model.parameters())),
        "of a part": ("torch.optim.SGD", lambda model: SGD(model.module[3].parameters(), lr=0.1)),
    }
    run.train(rank, range(2))
    for what, (name, make) in makes.items():
        other = make(run.model)
        if what == "anew":
            other.load_state_dict(copy.deepcopy(run.optimizer.state_dict()))
        run.model.zero_grad()
        run.backward(rank, 2)
        before = fingerprint(run.model)
        with pytest.raises(UpdateError) as refused:
            other.step()
        text = str(refused.value)
        said = "would apply gradients that were exchanged for another optimizer, the "
        assert text.startswith(f"{name} {said}")
        assert f"the {own} that attach() was given" in text
        assert "detach()" in text
        assert before == fingerprint(run.model)
    assert run.handle.step == 3, "the last one is undone by the next"
    run.train(rank, range(2, 4))
    replaced = optimizer_of(kind, run.model.parameters())
    replaced.load_state_dict(run.optimizer.state_dict())
    saved = run.handle.state_dict()
    run.handle.detach()
    run.optimizer = replaced
    run.handle = gradwire.torch.ddp.attach(run.model, codec_of(kind), optimizer=replaced)
    run.handle.load_state_dict(saved)
    run.train(rank, range(4, 6))
    whole = started(kind)
    whole.train(rank, range(6))
    assert whole.state() == run.state(), "as if there had been no other one"
    whole.end()
    run.handle.detach()
    run.backward(rank, 6)
    SGD(run.model.parameters(), lr=0.1).step()  # nobody claims it
    run.end()


class Sharpness(torch.optim.Optimizer):
    """Steps another optimizer, which it has as an attribute."""

    def __init__(self, inner):
        super().__init__([each for group in inner.param_groups for each in group["params"]], {})
        self.inner = inner

    def step(self, closure=None):
        return self.inner.step(closure)


@pytest.mark.parametrize("how", ["plain", "wrapped", "zero", "lbfgs", "two", "checkpoint"])
@on("two")
def test_optimizers_that_go_together_are_let_alone(rank, how):
    """Several have the parameters, or make steps, as they may."""
    from torch.distributed.checkpoint import state_dict
    from torch.distributed.optim import ZeroRedundancyOptimizer

    module = network()
    optimizer = SGD(module.parameters(), lr=0.05)
    if how == "zero":
        optimizer = ZeroRedundancyOptimizer(module.parameters(), SGD, lr=0.05)
    if how == "lbfgs":
        optimizer = LBFGS(module.parameters(), lr=0.05, max_iter=6)
    stepped = Sharpness(optimizer) if how == "wrapped" else optimizer
    with attached(module, gradwire.topk(0.1), options={"optimizer": optimizer}) as (model, handle):
        averaged = AveragedModel(module)

        def backward(step):
            optimizer.zero_grad()
            inputs, targets = batch(rank, step)
            loss = mse_loss(model(inputs), targets)
            loss.backward()
            return loss

        for step in range(5):
            if how == "two":  # of which one steps what was only averaged
                with handle.paused():
                    backward(step)
                SGD(module.parameters(), lr=0.01).step()
            if how == "checkpoint":  # which makes a step with gradients of zero
                optimizer.zero_grad()
                state_dict.get_optimizer_state_dict(model, AdamW(module.parameters()))
            if how == "lbfgs":
                stepped.step(functools.partial(backward, step))
            else:
                backward(step)
                stepped.step()
            averaged.update_parameters(module)
        assert alike((handle.step, fingerprint(module)))[0] >= 5


@pytest.mark.parametrize("how", ["by hand", "probes", "discarded", "paused", "sometimes"])
@pytest.mark.parametrize("kind", ["adam", "plain"])
@on("two")
def test_a_model_that_something_else_trains_is_told_after_three_undone_passes(rank, kind, how):
    run, text, passes = started(kind), "", 0
    run.train(rank, range(2))
    for step in range(2, 10):
        run.model.zero_grad()
        try:
            with run.handle.paused() if how == "paused" else contextlib.nullcontext():
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
    assert passes == (3 if how == "by hand" else 8)
    assert ("Pass the optimizer that the loop steps" in text) == bool(text) == (how == "by hand")
    assert how == "sometimes" or run.handle.step == 4
    run.end()
    assert not _global_optimizer_pre_hooks
