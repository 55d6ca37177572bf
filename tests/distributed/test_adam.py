"""AdamW on each rank, whose updates are sent: as torch makes them, and whatever programs do."""

import contextlib
import copy
import functools
import warnings
from unittest import mock

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn.functional import mse_loss
from torch.nn.parallel import DistributedDataParallel
from torch.optim import AdamW

import gradwire
import gradwire.torch.ddp
from gradwire.memory import AdamCorrection
from gradwire.quantize import BFloat16, Float32
from gradwire.schedule import Accordion, DenseWarmUp, WarmUp
from gradwire.sparsify import SID, All, TopK
from gradwire.torch.ddp import ExchangeError, PairingWarning
from gradwire.torch.engine import square_ratio
from gradwire.torch.engine.square_ratio import SquareRatio
from tests.distributed.ranks import alike, on
from tests.distributed.scenarios.common import (
    Run,
    batch,
    fingerprint,
    integers,
    network,
    plain,
    train,
)


def grouped(parameters, **options):
    """An AdamW without a first moment, as codecs have none; no decay for what has one dimension."""
    every = list(parameters)
    groups = [
        {"params": [each for each in every if each.ndim > 1], "lr": 0.01},
        {"params": [each for each in every if each.ndim < 2], "weight_decay": 0.0},
    ]
    return AdamW(groups, lr=0.02, betas=(0.0, 0.98), eps=1e-6, weight_decay=0.1, **options)


@pytest.mark.parametrize(
    ("dtype", "options", "ddp"),
    [
        (torch.float32, {"maximize": True, "foreach": False}, {}),
        (torch.float32, {"fused": True}, {"static_graph": True}),
        (torch.float64, {}, {"gradient_as_bucket_view": True}),
        (torch.bfloat16, {}, {}),
    ],
    ids=str,
)
@on("ranks")
def test_ranks_with_the_same_gradients_that_send_all_train_as_adamw(rank, dtype, options, ddp):
    """Two groups, and a schedule; but for the measured ratio of squares, which is 1."""
    module, alone = network().to(dtype), network().to(dtype)
    start = module[0].weight.detach().clone()
    make, exact = functools.partial(grouped, **options), SquareRatio(1.0, 16)
    reference = make(alone.parameters())
    with (
        mock.patch.object(SquareRatio, "with_measurement", return_value=exact),
        Run(gradwire.adam(1.0, quantize=Float32()), make, module=module, ddp=ddp) as run,
    ):
        pairs = ((run.model, run.optimizer), (alone, reference))
        schedules = [torch.optim.lr_scheduler.StepLR(each, 3, 0.5) for _, each in pairs]
        for step in range(8):
            inputs, targets = (each.to(dtype) for each in batch(0, step))
            for model, optimizer in pairs:
                optimizer.zero_grad()
                mse_loss(model(inputs), targets).backward()
                optimizer.step()
            for schedule in schedules:
                schedule.step()
    both = zip(module.parameters(), alone.parameters(), strict=True)
    difference = max(float((one - other).detach().abs().max()) for one, other in both)
    assert difference < (0.02 if dtype == torch.bfloat16 else 2e-5)
    assert (module[0].weight - start).abs().max() > 0.01
    assert len(run.optimizer.state) == 8, "5 are sent dense, and detach() has given 3 back"
    alike(fingerprint(module))


MADE = {
    "leader": gradwire.Codec(
        sparsify=TopK(ratio=0.05),
        memory=AdamCorrection(),
        exchange=gradwire.exchange.LeaderIndices(),
    ),
    "reduce": gradwire.Codec(
        sparsify=All(), memory=AdamCorrection(), exchange=gradwire.exchange.AllReduce()
    ),
    "onebit": gradwire.adam_onebit(),
    "half": gradwire.adam(0.05, quantize=BFloat16()),
    "sid": gradwire.Codec(sparsify=SID(ratio=0.05), memory=AdamCorrection()),
}


@pytest.mark.parametrize("how", MADE)
@on("ranks")
def test_every_way_to_send_updates_trains(rank, how):
    teacher, losses = network(7), []
    with Run(MADE[how], functools.partial(AdamW, lr=0.005)) as run:
        for step in range(25):
            inputs = batch(rank, step, rows=32)[0]
            run.optimizer.zero_grad()
            loss = mse_loss(run.model(inputs), teacher(inputs).detach())
            loss.backward()
            run.optimizer.step()
            losses.append(float(loss.detach()))
    assert losses[-1] < 0.5 * losses[0], losses
    alike(fingerprint(run.model))


class Tied(nn.Module):
    """A weight used twice, one that may be left out, and one that no group has at first."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.one, self.two, self.late = (nn.Linear(32, 64) for _ in range(3))
        self.back = nn.Linear(64, 32)
        self.again = nn.Linear(64, 32)
        self.again.weight = self.back.weight

    def forward(self, x: torch.Tensor, branch: bool = False) -> torch.Tensor:
        hidden = torch.tanh(self.back(torch.tanh(self.one(x))))
        hidden = self.again(torch.tanh(self.one(hidden))) + self.late(x).mean()
        loss: torch.Tensor = hidden.mean() + (self.two(x).square().mean() if branch else 0.0)
        return loss


@on("two")
def test_tied_unused_frozen_and_late_parameters(rank):
    module = Tied()
    early = [each for name, each in module.named_parameters() if not name.startswith("late")]
    with pytest.warns(PairingWarning, match=r"'late.weight', 'late.bias', are not in any group"):
        run = Run(
            gradwire.adam(0.1),
            lambda _: AdamW(early, lr=0.01),
            module=module,
            ddp={"find_unused_parameters": True},
        )
    optimizer = run.optimizer

    def go(steps, branch=False):
        for step in steps:
            optimizer.zero_grad()
            run.model(batch(rank, step)[0], branch and rank == 0).backward()
            optimizer.step()

    def state_of_two():
        (saved,) = run.handle.state_dict().values()
        tensors = [saved[kind]["two.weight"] for kind in ("second_moment", "residual")]
        return [each.numpy().tobytes() for each in (*tensors, weight("two.weight"))]

    def weight(name):
        return module.get_parameter(name).detach().clone()

    go(range(2), branch=True)
    before, late = state_of_two(), weight("late.weight")
    go(range(2, 4))
    assert before == state_of_two(), "what is not used waits"
    assert torch.equal(late, weight("late.weight")), "not trained"
    optimizer.add_param_group({"params": module.late.parameters(), "lr": 0.02, "eps": 1e-3})
    with pytest.raises(ValueError, match="the codec's eps is 1e-08"):
        go(range(4, 5), branch=True)
    optimizer.param_groups[-1]["eps"] = 1e-8
    optimizer.add_param_group({"params": nn.Parameter(torch.zeros(2000)), "eps": 1e-3})
    module.one.weight.requires_grad_(False)
    frozen = weight("one.weight")
    go(range(4, 6), branch=True)
    assert not torch.equal(late, weight("late.weight")), "trained later"
    assert torch.equal(frozen, weight("one.weight"))
    module.one.weight.requires_grad_(True)
    go(range(6, 8))
    assert not torch.equal(frozen, weight("one.weight")), "thawed"
    assert module.again.weight is module.back.weight
    run.end()


@pytest.mark.parametrize(
    "schedule",
    [DenseWarmUp(1), WarmUp(), Accordion(0.2, 0.05, interval=1)],
    ids=["dense", "warm-up", "accordion"],
)
@on("two")
def test_the_second_moment_goes_on_while_a_schedule_changes_the_codec(rank, schedule):
    dense = isinstance(schedule, DenseWarmUp)
    run, steps = Run(gradwire.adam(0.05), schedule=schedule), []
    weight = run.module[0].weight
    for epoch in range(3):
        run.handle.epoch(epoch)
        if dense and epoch == 1:
            before = run.optimizer.state[weight]["exp_avg_sq"].clone().numpy()
        for step in range(3):
            inputs, targets = batch(rank, 3 * epoch + step)
            run.optimizer.zero_grad()
            mse_loss(run.model(inputs), targets).backward()
            state = run.parameter().state
            if dense and epoch == 1 and step == 0:
                added = state.second_moment - np.float32(0.999) * before.ravel()
                assert before.any()
                assert (added >= -1e-12).all()
            run.optimizer.step()
            state = run.parameter().state
            steps.append(state.step)
            # Adam's bias is corrected by as many.
            assert state.state_dict()["scalars"]["second_moment_steps"] == state.step
    assert steps == ([0, 0, 0, 4, 5, 6, 7, 8, 9] if dense else list(range(1, 10)))
    assert weight not in run.optimizer.state, "the codec has taken over"
    run.end()


def moment_of(run):
    """The second moment of a weight, the steps of its codec, and those that correct its bias."""
    state = run.parameter().state
    return state.second_moment, state.step, state.state_dict()["scalars"]["second_moment_steps"]


def saved(rank, folder):
    """Train, and write a file of this rank."""
    with Run(gradwire.adam(0.05)) as run:
        run.train(rank, range(4))
        (folder / f"{rank}.pt").write_bytes(run.save())
        return moment_of(run)


def loaded(rank, folder, policy):
    """Load the file of this rank, if it has one."""
    file = folder / f"{rank}.pt"
    state = torch.load(file, weights_only=True)["gradwire"] if file.exists() else None
    with Run(gradwire.adam(0.05)) as run:
        run.handle.load_state_dict(state, policy)
        return moment_of(run)


@pytest.mark.parametrize("policy", ["keep", pytest.param("drop", marks=pytest.mark.full)])
def test_all_ranks_also_new_ones_start_from_the_mean_of_second_moments(
    two, three, tmp_path, policy
):
    moments = [moment.astype(np.float64) for moment, *_ in two.run(saved, folder=tmp_path)]
    for moment, *steps in three.run(loaded, folder=tmp_path, policy=policy):
        np.testing.assert_allclose(moment, sum(moments) / 2, rtol=1e-6)
        assert steps == [4, 4]


@on("two")
def test_after_detaching_it_is_torchs_adamw_with_the_moments_of_the_codec(rank):
    run = Run(gradwire.adam(0.05))
    run.train(rank, range(3))
    run.handle.detach()
    moments = [each for each in run.module.parameters() if each in run.optimizer.state]
    assert sum(each.numel() > 1023 for each in moments) == 3
    twin = DistributedDataParallel(network())
    twin.load_state_dict(run.model.state_dict())
    other = AdamW(twin.parameters(), lr=0.01)
    other.load_state_dict(copy.deepcopy(run.optimizer.state_dict()))
    run.train(rank, range(3, 6))
    train(twin, rank, range(3, 6), optimizer=other)
    assert alike(fingerprint(run.model)) == fingerprint(twin)


@on("two")
def test_a_checkpoint_of_dense_training_goes_on_without_a_warning(rank):
    """Loaded before attach() and after it."""
    model = DistributedDataParallel(network())
    dense = AdamW(model.parameters(), lr=0.01)
    train(model, rank, range(3), optimizer=dense)

    def loaded(parameters):
        optimizer = AdamW(parameters, lr=0.01)
        optimizer.load_state_dict(copy.deepcopy(dense.state_dict()))
        return optimizer

    with warnings.catch_warnings():
        warnings.simplefilter("error", PairingWarning)
        with Run(gradwire.adam(0.05), loaded) as run:
            run.train(rank, range(3, 6))
        with Run(gradwire.adam(0.05)) as run:
            run.optimizer.load_state_dict(copy.deepcopy(dense.state_dict()))
            run.train(rank, range(3, 6))


@on("two")
def test_steps_without_an_optimizer_are_those_of_each_rank(rank):
    """Measured, they would be longer where the ranks' first gradients have one sign."""
    tensor = integers(5, rank, 0)["b"].flatten()
    codec = gradwire.adam(1.0, quantize=gradwire.quantize.Float32())
    state = gradwire.torch.init_state(codec, tensor)
    state.learning_rate = 0.25
    gradwire.torch.all_reduce(tensor, codec, state)
    assert float(tensor.abs().max()) == pytest.approx(0.25)


@on("two")
def test_a_rank_that_cannot_measure_is_an_error_of_all(rank):
    run = Run(gradwire.adam(0.05))
    run.train(rank, range(1))
    before = plain(run.handle.state_dict())
    run.optimizer.zero_grad()
    fails = mock.patch.object(square_ratio, "sums_of", side_effect=MemoryError("too much"))
    with (
        fails if rank == 1 else contextlib.nullcontext(),
        pytest.raises(ExchangeError, match="too much"),
    ):
        run.model(batch(rank, 1)[0]).mean().backward()
    assert before == plain(run.handle.state_dict())
    run.end()
