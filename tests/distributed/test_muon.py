"""Muon, whose momentum each rank estimates for the others: what is averaged, kept and undone."""

import functools
import io
import warnings

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn.functional import mse_loss
from torch.nn.parallel import DistributedDataParallel

import gradwire
import gradwire.torch.ddp
import gradwire.torch.fsdp
from gradwire.exchange import (
    AllGather,
    AllReduce,
    LeaderIndices,
    QuantizedAllReduce,
    ReduceScatter,
)
from gradwire.memory import Estimate
from gradwire.quantize import Float32
from gradwire.sparsify import RandomK, TopK
from gradwire.torch.ddp import GradientError, PairingWarning
from tests.distributed.ranks import LazyModule, alike, on, together
from tests.distributed.scenarios.common import (
    Given,
    Run,
    batch,
    bits,
    fingerprint,
    integers,
    network,
)
from tests.distributed.test_sharded import mesh

fsdp = LazyModule("torch.distributed.fsdp")

Muon = getattr(torch.optim, "Muon", None)
pytestmark = pytest.mark.skipif(Muon is None, reason="torch has no Muon")

make = functools.partial(Muon, lr=0.02) if Muon is not None else None
SHAPES = {"a": (64, 40), "b": (50, 30)}


def matrices(seed: int = 0) -> nn.Sequential:
    """A small network without biases: Muon takes no others."""
    torch.manual_seed(seed)
    layers = (nn.Linear(32, 96, bias=False), nn.Tanh(), nn.Linear(96, 16, bias=False))
    return nn.Sequential(*layers)


def run(codec=None, module=None, **options):
    """A run of `matrices`, all of them compressed."""
    codec = gradwire.muon() if codec is None else codec
    return Run(codec, make, module=module or matrices(), min_numel=1, **options)


def check_estimates(one: Run) -> None:
    """On all ranks, the same mean of what each has of itself, which the optimizer reads."""
    for name, parameter in one.module.named_parameters():
        state = one.parameter(name).state
        every = together((state.residual, state.estimate))
        for _, shared in every:
            np.testing.assert_array_equal(shared, state.estimate)
        mean = np.mean([own for own, _ in every], axis=0)
        np.testing.assert_allclose(state.estimate, mean, atol=1e-6 * np.abs(mean).max())
        assert np.abs(mean).max() > 0
        assert parameter.grad is not None
        np.testing.assert_array_equal(parameter.grad.numpy().ravel(), state.estimate)


class Reference:
    """EF21 of one parameter on all ranks, in float64."""

    def __init__(self, ranks: int, numel: int, ratio: float, nesterov: bool) -> None:
        self.moments, self.estimates = np.zeros((ranks, numel)), np.zeros((ranks, numel))
        self.count, self.nesterov = round(ratio * numel), nesterov

    def step(self, gradients, beta: float):
        """Return the mean of the estimates."""
        self.moments = beta * self.moments + (1 - beta) * gradients
        targets = self.moments
        if self.nesterov:
            targets = beta * targets + (1 - beta) * gradients
        for estimate, change in zip(self.estimates, targets - self.estimates, strict=True):
            at = np.argsort(-np.abs(change), kind="stable")[: self.count]
            estimate[at] += np.sign(change[at]) * np.abs(change[at]).mean()
        return self.estimates.mean(axis=0)


@pytest.mark.parametrize("nesterov", [False, True])
@on("ranks")
def test_grad_holds_the_mean_of_estimates_and_the_optimizer_adds_no_momentum(rank, size, nesterov):
    module = Given(shapes=SHAPES)
    optimizer = Muon(module.parameters(), lr=0.02, momentum=0.9, nesterov=nesterov)
    model = DistributedDataParallel(module)
    handle = gradwire.torch.ddp.attach(
        model, gradwire.muon(0.1, exchange=AllGather()), optimizer=optimizer
    )
    references = {
        name: Reference(size, int(np.prod(shape)), 0.1, nesterov) for name, shape in SHAPES.items()
    }
    for step in range(12):
        given = integers(3, rank, step, shapes=SHAPES)
        optimizer.zero_grad()
        model(given).backward()
        for name, parameter in module.named_parameters():
            gradients = np.stack(together(given[name].numpy().ravel())).astype(np.float64)
            expected = references[name].step(gradients, 0.9)
            found = parameter.grad.numpy().ravel()
            np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-4)
        before = {name: each.grad.clone() for name, each in module.named_parameters()}
        optimizer.step()
        (group,) = optimizer.param_groups
        assert (group["momentum"], group["nesterov"]) == (0.9, nesterov)
        for name, parameter in module.named_parameters():
            assert torch.equal(optimizer.state[parameter]["momentum_buffer"], before[name])
    alike(fingerprint(module))
    handle.detach()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@on("ranks")
def test_ranks_that_send_all_train_as_muon_whose_momentum_a_program_changes(rank, size, dtype):
    module, alone = matrices().to(dtype), matrices().to(dtype)
    start = module[0].weight.detach().clone()
    reference = make(alone.parameters())
    with run(gradwire.muon(1.0, quantize=Float32()), module) as one:
        for step in range(8):
            for optimizer in (one.optimizer, reference):
                for group in optimizer.param_groups:
                    group["momentum"] = 0.85 + 0.01 * step
                optimizer.zero_grad()
            inputs, targets = (each.to(dtype) for each in batch(rank, step))
            mse_loss(one.model(inputs), targets).backward()
            for other in range(size):
                inputs, targets = (each.to(dtype) for each in batch(other, step))
                (mse_loss(alone(inputs), targets) / size).backward()
            one.optimizer.step()
            reference.step()
    both = zip(module.parameters(), alone.parameters(), strict=True)
    difference = max(float((first - other).detach().abs().max()) for first, other in both)
    moved = float((module[0].weight.detach() - start).abs().max())
    assert difference < (0.2 if dtype == torch.bfloat16 else 0.05) * moved
    alike(fingerprint(module))


WAYS = {
    "gather": gradwire.muon(exchange=AllGather()),
    "all signs": gradwire.muon(1.0),
    "rows": gradwire.muon(1.0, quantize=gradwire.quantize.TwoMeans()),
    "owners": gradwire.muon(exchange=ReduceScatter()),
    "owners of all": gradwire.muon(1.0, exchange=QuantizedAllReduce()),
    "values": gradwire.muon(0.05, quantize=gradwire.quantize.BFloat16()),
    "leader": gradwire.muon(0.05, quantize=Float32(), exchange=LeaderIndices()),
    "random": gradwire.Codec(sparsify=RandomK(ratio=0.1), memory=Estimate(), exchange=AllReduce()),
}


@pytest.mark.parametrize("how", WAYS)
@on("ranks")
def test_estimates_stay_the_same_on_all_ranks_and_training_learns(rank, how):
    teacher, losses = matrices(7), []
    with run(WAYS[how]) as one:
        for step in range(30):
            inputs = batch(rank, step, rows=32)[0]
            one.optimizer.zero_grad()
            loss = mse_loss(one.model(inputs), teacher(inputs).detach())
            loss.backward()
            if step % 10 == 9:
                check_estimates(one)
            one.optimizer.step()
            losses.append(float(loss.detach()))
        assert losses[-1] < 0.6 * losses[0], losses
        one.end()


@on("ranks")
def test_what_is_dropped_or_bad_leaves_no_trace(rank):
    with run() as one, run() as other:
        one.train(rank, range(5))
        other.train(rank, range(5))
        one.optimizer.zero_grad()
        one.backward(rank, 100)  # and no step
        one.optimizer.zero_grad()
        inputs, targets = batch(rank, 101)
        if rank == 0:
            inputs[0, 0] = torch.nan
        with pytest.raises(GradientError, match=r"0.weight|2.weight"):
            mse_loss(one.model(inputs), targets).backward()
        one.optimizer.zero_grad()
        one.backward(rank, 102)
        one.handle.discard()
        for each in (one, other):
            each.train(rank, range(5, 8))
        check_estimates(one)
        assert one.state() == other.state()


@on("ranks")
def test_a_resumed_run_goes_on_bit_for_bit(rank):
    with run() as one:
        one.train(rank, range(5))
        saved = one.save()
        one.train(rank, range(5, 9))
        expected = one.state()
    with run(module=matrices(1)) as other:
        other.load(saved)
        other.train(rank, range(5, 9))
        assert other.state() == expected
        check_estimates(other)


def _saved(rank, size):
    with run() as one:
        one.train(rank, range(6))
        torch.save(one.handle.state_dict(), file := io.BytesIO())
        return file.getvalue()


def _resumed(rank, size, saved, policy):
    states = [torch.load(io.BytesIO(each), weights_only=True) for each in saved]
    with run() as one:
        one.train(rank, range(2))
        one.optimizer.zero_grad()
        given = states
        if policy != "sum-and-split":
            given = states[rank] if rank < len(states) else None
        one.handle.load_state_dict(given, policy)
        state = one.parameter().state
        own, shared = together((state.residual, state.estimate))[rank]
        one.train(rank, range(6, 8))
        check_estimates(one)
        return own, shared


@pytest.mark.parametrize("policy", ["sum-and-split", "keep", "drop"])
@pytest.mark.parametrize("grows", [True, False])
def test_another_number_of_ranks_has_the_mean_of_their_estimates(two, three, policy, grows):
    before, after = (two, three) if grows else (three, two)
    saved = before.run(_saved)
    found = after.run(_resumed, saved=saved, policy=policy)
    mean = np.mean([own for own, _ in found], axis=0, dtype=np.float64).astype(np.float32)
    for _, shared in found:
        np.testing.assert_array_equal(shared, mean)
    first = torch.load(io.BytesIO(saved[0]), weights_only=True)
    old = first["rank0"]["estimate"]["0.weight"].numpy().ravel()
    if policy == "sum-and-split":
        np.testing.assert_allclose(mean, old, atol=1e-7)
    assert (policy == "drop") == (not mean.any())


@on("two")
def test_attached_to_a_model_in_training_it_goes_on_with_the_momentum(rank):
    module = matrices()
    optimizer = make(module.parameters())
    model = DistributedDataParallel(module)

    def train(steps):
        for step in steps:
            optimizer.zero_grad()
            inputs, targets = batch(rank, step)
            mse_loss(model(inputs), targets).backward()
            optimizer.step()

    train(range(5))
    before = optimizer.state[module[0].weight]["momentum_buffer"].clone()
    handle = gradwire.torch.ddp.attach(model, optimizer=optimizer, min_numel=1)
    assert handle._parameters["0.weight"].codec.memory == Estimate(momentum=0.95, nesterov=True)
    train(range(5, 6))
    after = optimizer.state[module[0].weight]["momentum_buffer"]
    assert torch.nn.functional.cosine_similarity(before.ravel(), after.ravel(), dim=0) > 0.8
    changed = (after != before).float().mean()
    assert 0.0 < changed < 0.21  # a tenth of the entries, of each rank
    handle.detach()
    back = optimizer.state[module[0].weight]["momentum_buffer"]
    assert back.norm() > 0
    alike(bits(back))
    train(range(6, 8))
    alike(fingerprint(module))


@on("two")
def test_accumulation_exchanges_once_and_a_loss_scale_is_taken_out(rank):
    with run() as one, run(grad_scaler=(scaler := torch.amp.GradScaler("cpu", 1024.0))) as other:
        for step in range(4):
            one.optimizer.zero_grad()
            one.backward(rank, 2 * step, exchange=False)
            one.backward(rank, 2 * step + 1)
            one.optimizer.step()
            other.optimizer.zero_grad()
            with other.model.no_sync():
                inputs, targets = batch(rank, 2 * step)
                scaler.scale(mse_loss(other.model(inputs), targets)).backward()
            inputs, targets = batch(rank, 2 * step + 1)
            scaler.scale(mse_loss(other.model(inputs), targets)).backward()
            scaler.step(other.optimizer)
            scaler.update()
        check_estimates(one)
        assert fingerprint(one.module) == fingerprint(other.module)


@on("four")
def test_fsdp_shards_have_estimates_of_their_own_rows(rank):
    both = mesh()
    model, teacher = matrices(), matrices(7)
    for each in (model[0], model[2], model):
        fsdp.fully_shard(each, mesh=both["shard"])
    optimizer = make(model.parameters())
    handle = gradwire.torch.fsdp.attach(
        model, optimizer=optimizer, mesh=both["replicate"], min_numel=64
    )
    losses = []
    for step in range(20):
        inputs = batch(rank, step, rows=32)[0]
        optimizer.zero_grad()
        loss = mse_loss(model(inputs), teacher(inputs).detach())
        loss.backward()
        for slot in handle._parameters.values():
            own = slot.tensor.grad.to_local().ravel()
            assert torch.equal(own, torch.from_numpy(slot.state.estimate))
        optimizer.step()
        losses.append(float(loss.detach()))
    every = together(bits(model[0].weight.to_local()))
    assert every[0] == every[2]
    assert every[1] == every[3]
    assert losses[-1] < 0.7 * losses[0], losses
    handle.detach()


@on("four")
def test_in_a_hierarchy_each_share_has_an_estimate(rank):
    with run(hierarchy=2) as one:
        one.train(rank, range(6))
        one.optimizer.zero_grad()
        one.backward(rank, 6)
        slot, weight = one.parameter(), one.module[0].weight
        assert torch.equal(slot.own(weight.grad).ravel(), torch.from_numpy(slot.state.estimate))
        one.optimizer.step()
        one.end()


@on("two")
def test_after_a_dense_warm_up_estimates_begin_with_the_momentum_and_clipping_is_told(rank):
    with run(schedule=gradwire.schedule.DenseWarmUp(1)) as one:
        one.train(rank, range(4))
        buffer = one.optimizer.state[one.module[0].weight]["momentum_buffer"].clone()
        one.handle.epoch(1)
        one.optimizer.zero_grad()
        one.backward(rank, 4)
        check_estimates(one)
        same = one.module[0].weight.grad == buffer
        assert same.float().mean() > 0.79  # each of two ranks has changed a tenth
        torch.nn.utils.clip_grad_norm_(one.module.parameters(), 1e-3)
        with pytest.warns(PairingWarning, match=r"with Muon, which ignores their length"):
            one.optimizer.step()
        one.end()


@on("two")
def test_muon_trains_matrices_beside_adamw(rank):
    module = network()
    several = [[], []]
    for each in module.parameters():
        several[each.ndim == 2].append(each)
    optimizers = [make(several[1]), torch.optim.AdamW(several[0], lr=0.002)]
    model = DistributedDataParallel(module)
    handle = gradwire.torch.ddp.attach(model, optimizer=optimizers, min_numel=32)
    kinds = [handle._parameters[name].codec.memory.kind for name in ("0.weight", "0.bias")]
    assert kinds == ["estimate", "adam_correction"]
    for step in range(6):
        for group in optimizers[0].param_groups:
            group["momentum"] = 0.9 + 0.01 * step
        for optimizer in optimizers:
            optimizer.zero_grad()
        inputs, targets = batch(rank, step)
        mse_loss(model(inputs), targets).backward()
        slot = handle._parameters["0.weight"]
        assert slot.codec.memory.momentum == 0.9 + 0.01 * step
        grad = module[0].weight.grad.numpy().ravel()
        np.testing.assert_array_equal(grad, slot.state.estimate)
        for optimizer in optimizers:
            optimizer.step()
    handle.detach()
    alike(fingerprint(module))


class TheirMuon(torch.optim.Optimizer):
    """A Muon as programs bring it along: other options, and a momentum that is a sum."""

    def __init__(self, parameters):
        super().__init__(parameters, {"lr": 0.02, "momentum": 0.95})

    @torch.no_grad()
    def step(self, closure=None):
        loss = None if closure is None else closure()
        for group in self.param_groups:
            for each in group["params"]:
                if each.grad is None:
                    each.grad = torch.zeros_like(each)
                state = self.state[each]
                buffer = state.setdefault("momentum_buffer", torch.zeros_like(each))
                buffer.mul_(group["momentum"]).add_(each.grad)
                u, _, v = torch.linalg.svd(buffer, full_matrices=False)
                each.sub_(u @ v, alpha=group["lr"])
        return loss


@on("two")
def test_other_muons_are_known_once_they_are_named(rank):
    module = matrices()
    model = DistributedDataParallel(module)
    optimizer = TheirMuon(module.parameters())
    advice = r"gradwire.torch.optim.MUONS.add\(TheirMuon\)"
    with pytest.raises(ValueError, match=advice):
        gradwire.torch.ddp.attach(model, gradwire.muon(), optimizer=optimizer)
    with pytest.warns(PairingWarning, match=advice):
        gradwire.torch.ddp.attach(model, optimizer=optimizer).detach()
    gradwire.torch.optim.MUONS.add(TheirMuon)
    try:
        handle = gradwire.torch.ddp.attach(model, gradwire.muon(1.0), optimizer=optimizer)
        for step in range(3):
            optimizer.zero_grad()
            inputs, targets = batch(rank, step)
            mse_loss(model(inputs), targets).backward()
            expected = module[0].weight.detach().clone()
            u, _, v = torch.linalg.svd(module[0].weight.grad, full_matrices=False)
            optimizer.step()
            expected.sub_(u @ v, alpha=0.02)
            torch.testing.assert_close(module[0].weight.detach(), expected, atol=1e-5, rtol=0)
        handle.detach()
    finally:
        gradwire.torch.optim.MUONS.remove(TheirMuon)
    alike(fingerprint(module))


@on("two")
def test_optimizers_and_codecs_that_do_not_go_together_are_refused(rank):
    model = DistributedDataParallel(matrices())
    parameters = list(model.parameters())
    attach = functools.partial(gradwire.torch.ddp.attach, model)
    for optimizer in (torch.optim.AdamW(parameters), torch.optim.SGD(parameters, lr=0.1)):
        with pytest.raises(ValueError, match=r"use torch.optim.Muon\(matrices"):
            attach(gradwire.muon(), optimizer=optimizer)
    with pytest.raises(ValueError, match=r"use torch.optim.SGD"):
        attach(gradwire.dgc(), optimizer=make(parameters))
    with pytest.raises(ValueError, match=r"the codec's momentum is 0.9, the optimizer's"):
        attach(gradwire.muon(momentum=0.9), optimizer=make(parameters))
    with pytest.raises(ValueError, match="low_memory"):
        attach(gradwire.muon(), optimizer=make(parameters), low_memory=True)
    with pytest.raises(ValueError, match="mean over all ranks"):
        gradwire.muon(exchange=AllGather(mean="senders"))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        attach(optimizer=make(parameters)).detach()


@on("two")
def test_a_parameter_without_gradients_keeps_its_estimate(rank):
    module = Given(shapes=SHAPES)
    model = DistributedDataParallel(module, find_unused_parameters=True)
    optimizer = make(module.parameters())
    handle = gradwire.torch.ddp.attach(model, TOP, optimizer=optimizer)
    for step in range(4):
        names = ["a", "b"] if step == 0 else (["a"] if rank == 0 or step > 1 else ["a", "b"])
        given = integers(5, rank, step, names, SHAPES)
        optimizer.zero_grad()
        if step == 3:
            given["a"].zero_()
        model(given).backward()
        state = handle._parameters["b"].state
        if step == 1:
            kept = state.estimate
        if step > 1:
            np.testing.assert_array_equal(state.estimate, kept)
        optimizer.step()
    handle.detach()
    alike(fingerprint(module))


TOP = gradwire.Codec(sparsify=TopK(ratio=0.1), memory=Estimate())
