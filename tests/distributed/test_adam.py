"""AdamW on each rank, whose updates are sent: as simulated, and whatever programs do."""

import contextlib
import copy
import warnings
from typing import Any, get_args
from unittest import mock

import numpy as np
import pytest
import torch
from torch import nn
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_optimizer_state_dict,
    set_optimizer_state_dict,
)
from torch.distributed.checkpoint.state_dict_loader import load
from torch.distributed.checkpoint.state_dict_saver import save
from torch.nn.functional import mse_loss
from torch.nn.parallel import DistributedDataParallel
from torch.optim import AdamW

import gradwire
import gradwire.torch.ddp
from gradwire.memory import AdamCorrection
from gradwire.quantize import BFloat16
from gradwire.schedule import Accordion, DenseWarmUp, WarmUp
from gradwire.sparsify import SID, All, TopK
from gradwire.torch.checkpoint.format import Policy
from gradwire.torch.ddp import ExchangeError, GradientError, PairingWarning
from gradwire.torch.exchange import squares
from gradwire.torch.exchange.squares import sample
from tests.distributed.ranks import alike, on
from tests.distributed.scenarios.common import (
    SMALL_BUCKETS,
    Given,
    batch,
    fingerprint,
    integers,
    network,
    plain,
    train,
)

BETA2, EPS = 0.98, 1e-6


def codec_of(ratio):
    """Updates that torch's AdamW of `optimizer_of` makes, in float32."""
    memory = AdamCorrection(beta2=BETA2, eps=EPS)
    return gradwire.Codec(sparsify=TopK(ratio=ratio), memory=memory)


def groups_of(module):
    """Two groups with rates of their own: no decay for what has one dimension."""
    every = list(module.parameters())
    return [
        {"params": [each for each in every if each.ndim > 1], "lr": 0.01},
        {"params": [each for each in every if each.ndim < 2], "weight_decay": 0.0},
    ]


def optimizer_of(groups, **options):
    """An optimizer that goes with the codec."""
    return AdamW(groups, lr=0.02, betas=(0.9, BETA2), eps=EPS, weight_decay=0.1, **options)


def started(codec=None, module=None, **options):
    """A model, its optimizer and the handle."""
    model = DistributedDataParallel(module or network(), bucket_cap_mb=SMALL_BUCKETS)
    optimizer = AdamW(model.parameters(), lr=0.01)
    codec = codec or gradwire.adam(0.05)
    handle = gradwire.torch.ddp.attach(model, codec, optimizer=optimizer, **options)
    return model, optimizer, handle


def held(handle, *kinds):
    """What the checkpoint of this rank has of a weight, as arrays."""
    (saved,) = handle.state_dict().values()
    return [saved[kind]["0.weight"].numpy() for kind in kinds]


def gradients(module, rank, step):
    """The gradients that a rank has with these weights."""
    inputs, targets = batch(rank, step)
    dtype = next(module.parameters()).dtype
    loss = mse_loss(module(inputs.to(dtype)), targets.to(dtype))
    return list(torch.autograd.grad(loss, list(module.parameters())))


@pytest.mark.parametrize(
    ("ratio", "dtype", "options", "ddp"),
    [
        (1.0, torch.float32, {}, {}),
        (1.0, torch.float32, {"maximize": True, "foreach": False}, {}),
        (0.1, torch.float32, {"fused": True}, {}),
        (1.0, torch.float64, {}, {"gradient_as_bucket_view": True}),
        (0.1, torch.float64, {}, {"static_graph": True}),
        (1.0, torch.bfloat16, {}, {}),
    ],
    ids=str,
)
@on("ranks")
def test_training_is_what_a_simulation_of_all_ranks_gives(rank, size, ratio, dtype, options, ddp):
    """Train with DDP, and all ranks one after the other in one process."""
    module, alone = network().to(dtype), network().to(dtype)
    start = module[0].weight.detach().clone()
    model = DistributedDataParallel(module, bucket_cap_mb=SMALL_BUCKETS, **ddp)
    optimizer = optimizer_of(groups_of(module), **options)
    simulated = Simulated(alone, size, ratio, **options)
    schedules = [
        torch.optim.lr_scheduler.StepLR(each, 3, 0.5) for each in (optimizer, simulated.rates)
    ]
    with gradwire.torch.ddp.attach(model, codec_of(ratio), optimizer=optimizer):
        for step in range(8):
            simulated.step([gradients(alone, each, step) for each in range(size)])
            inputs, targets = (each.to(dtype) for each in batch(rank, step))
            optimizer.zero_grad()
            mse_loss(model(inputs), targets).backward()
            optimizer.step()
            for schedule in schedules:
                schedule.step()
    pairs = zip(module.parameters(), alone.parameters(), strict=True)
    difference = max(float((a - b).detach().abs().max()) for a, b in pairs)
    assert difference < (0.02 if dtype == torch.bfloat16 else 2e-5)
    assert (module[0].weight - start).abs().max() > 0.01
    assert len(optimizer.state) == 8, "5 are sent dense, and detach() has given 3 back"
    alike(fingerprint(model))


class Simulated:
    """All ranks in one process: torch's AdamW for what is dense, numpy for the rest."""

    def __init__(
        self, module: nn.Module, ranks: int, ratio: float, *, maximize: bool = False, **_: Any
    ) -> None:
        self.parameters = list(module.parameters())
        dense = [each for each in self.parameters if each.numel() < 1024]
        groups = groups_of(module)
        for group in groups:
            group["params"] = [
                each for each in group["params"] if any(each is one for one in dense)
            ]
        self.sign = -1.0 if maximize else 1.0
        self.dense = torch.optim.AdamW(
            groups, lr=0.02, betas=(0.9, BETA2), eps=EPS, weight_decay=0.1, maximize=maximize
        )
        # Only its learning rates are used; those of the dense ones follow them.
        self.rates = torch.optim.SGD(groups_of(module), lr=0.02)
        feedback = gradwire.Codec(sparsify=TopK(ratio=ratio))
        self.codec = feedback
        self.ranks = [
            {id(each): feedback.init_state(each.numel()) for each in self.parameters}
            for _ in range(ranks)
        ]
        self.moments: list[dict[int, Any]] = [{} for _ in range(ranks)]
        self.ratios: dict[int, float] = {}
        self.count = 0

    def step(self, every: list[list[torch.Tensor]]) -> None:
        self.count += 1
        for group, other in zip(self.dense.param_groups, self.rates.param_groups, strict=True):
            group["lr"] = other["lr"]
        rates = {
            id(each): (group["lr"], 0.1 if each.ndim > 1 else 0.0)
            for group in self.rates.param_groups
            for each in group["params"]
        }
        for index, parameter in enumerate(self.parameters):
            found = [gradients[index] for gradients in every]
            if parameter.numel() < 1024:
                parameter.grad = (
                    torch.stack([each.double() for each in found]).mean(0).to(parameter.dtype)
                )
                continue
            rate, decay = rates[id(parameter)]
            longer = rate / self._ratio(parameter, found) ** 0.5
            updates = [
                self._update(rank, parameter, each, longer) for rank, each in enumerate(found)
            ]
            update = torch.from_numpy(np.mean(updates, axis=0)).view(parameter.shape)
            with torch.no_grad():
                wide = parameter.double() * (1 - rate * decay)
                parameter.copy_(wide - self.sign * update.to(parameter.dtype).double())
        self.dense.step()

    def _ratio(self, parameter: torch.Tensor, found: list[torch.Tensor]) -> float:
        """The mean over all steps so far: of sums with signs, as a codec has no more to go by."""
        sums = torch.zeros(65, dtype=torch.float64)
        for each in found:
            values, signs = sample(each.float().flatten(), self.count - 1)
            own = torch.cat([(values * signs).sum(0), values.square().sum().view(1)])
            sums += own.bfloat16().double()
        now = float(sums[:-1].square().sum() / sums[-1]) / len(found)
        mean = self.ratios.get(id(parameter), 0.0)
        mean += (now - mean) / self.count
        self.ratios[id(parameter)] = min(max(mean, 1.0 / len(found)), 1.0)
        return self.ratios[id(parameter)]

    def _update(
        self, rank: int, parameter: torch.Tensor, gradient: torch.Tensor, rate: float
    ) -> Any:
        # In float32, as the core has it: the first steps of all entries are almost the same, and
        # the last bit decides which of them are sent.
        single = np.float32
        narrow = gradient.float().numpy().ravel()
        moments = self.moments[rank]
        old = moments.get(id(parameter), np.zeros(narrow.size, single))
        moment = single(BETA2) * old + (single(1 - BETA2) * narrow) * narrow
        moments[id(parameter)] = moment
        root = single(1 / np.sqrt(1 - BETA2**self.count)) * np.sqrt(moment) + single(EPS)
        frame = self.codec.encode(single(rate) * (narrow / root), self.ranks[rank][id(parameter)])
        return gradwire.decode(frame).astype(np.float64)


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
    model = DistributedDataParallel(network(), bucket_cap_mb=SMALL_BUCKETS)
    optimizer = AdamW(model.parameters(), lr=0.003)
    teacher, losses = network(7), []
    with gradwire.torch.ddp.attach(model, MADE[how], optimizer=optimizer):
        for step in range(40):
            inputs = batch(rank, step, rows=32)[0]
            optimizer.zero_grad()
            loss = mse_loss(model(inputs), teacher(inputs).detach())
            loss.backward()
            optimizer.step()
            losses.append(float(loss.detach()))
    assert losses[-1] < 0.5 * losses[0], losses
    alike(fingerprint(model))


@on("two")
def test_a_loss_scale_changes_nothing_and_a_skipped_step_leaves_no_trace(rank):
    prints = []
    for with_scaler in (True, False):
        scaler = torch.amp.GradScaler(
            "cpu", init_scale=1024.0, growth_interval=2, enabled=with_scaler
        )
        model = DistributedDataParallel(network(), bucket_cap_mb=SMALL_BUCKETS)
        optimizer = optimizer_of(groups_of(model.module))
        options = {"optimizer": optimizer, "grad_scaler": scaler}

        def step_with(step, factor=1.0, model=model, optimizer=optimizer, scaler=scaler):
            inputs, targets = batch(rank, step)
            optimizer.zero_grad()
            scaler.scale(mse_loss(model(inputs), targets) * factor).backward()
            scaler.step(optimizer)
            scaler.update()

        with gradwire.torch.ddp.attach(model, codec_of(0.05), **options) as handle:
            for step in range(6):
                if with_scaler and step == 3:
                    before = plain(handle.state_dict()), fingerprint(model)
                    step_with(50, torch.inf if rank == 1 else 1.0)
                    assert before == (plain(handle.state_dict()), fingerprint(model))
                step_with(step)
        prints.append(fingerprint(model))
    assert prints[0] == alike(prints)[1]


@on("two")
def test_a_gradient_that_is_not_finite_changes_no_moment(rank):
    model, optimizer, handle = started(module=Given())
    for step in range(4):
        optimizer.zero_grad()
        given = integers(1, rank, step)
        if step != 2:
            model(given).backward()
            optimizer.step()
            continue
        if rank == 1:
            given["a"][1, 1] = torch.nan
        before = plain(handle.state_dict())
        with pytest.raises(GradientError) as caught:
            model(given).backward()
        assert (caught.value.name, caught.value.rank) == ("a", 1)
        assert before == plain(handle.state_dict())
    handle.detach()
    alike(fingerprint(model))


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
        found: torch.Tensor = hidden.mean() + (self.two(x).square().mean() if branch else 0.0)
        return found


@on("two")
def test_tied_unused_frozen_and_late_parameters(rank):
    module = Tied()
    model = DistributedDataParallel(
        module, bucket_cap_mb=SMALL_BUCKETS, find_unused_parameters=True
    )
    early = [each for name, each in module.named_parameters() if not name.startswith("late")]
    optimizer = AdamW(early, lr=0.01)
    with pytest.warns(PairingWarning, match=r"'late.weight', 'late.bias', are not in any group"):
        handle = gradwire.torch.ddp.attach(model, gradwire.adam(0.1), optimizer=optimizer)

    def go(steps, branch=False):
        for step in steps:
            optimizer.zero_grad()
            model(batch(rank, step)[0], branch and rank == 0).backward()
            optimizer.step()

    def kept():
        (saved,) = handle.state_dict().values()
        tensors = [saved[kind]["two.weight"] for kind in ("second_moment", "residual")]
        return [each.numpy().tobytes() for each in (*tensors, weight("two.weight"))]

    def weight(name):
        return module.get_parameter(name).detach().clone()

    go(range(2), branch=True)
    before, late = kept(), weight("late.weight")
    go(range(2, 4))
    assert before == kept(), "what is not used waits"
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
    handle.detach()
    alike(fingerprint(model))


@pytest.mark.parametrize(
    "schedule",
    [DenseWarmUp(1), WarmUp(), Accordion(0.2, 0.05, interval=1)],
    ids=["dense", "warm-up", "accordion"],
)
@on("two")
def test_the_second_moment_goes_on_while_a_schedule_changes_the_codec(rank, schedule):
    dense = isinstance(schedule, DenseWarmUp)
    model, optimizer, handle = started(schedule=schedule)
    weight, steps = model.module[0].weight, []
    for epoch in range(3):
        handle.epoch(epoch)
        if dense and epoch == 1:
            before = optimizer.state[weight]["exp_avg_sq"].clone().numpy()
        for step in range(3):
            inputs, targets = batch(rank, 3 * epoch + step)
            optimizer.zero_grad()
            mse_loss(model(inputs), targets).backward()
            state = handle._parameters["0.weight"].state
            if dense and epoch == 1 and step == 0:
                added = state.second_moment - np.float32(0.999) * before.ravel()
                assert before.any()
                assert (added >= -1e-12).all()
            optimizer.step()
            state = handle._parameters["0.weight"].state
            steps.append(state.step)
            # Adam's bias is corrected by as many.
            assert state.state_dict()["scalars"]["second_moment_steps"] == state.step
    assert steps == ([0, 0, 0, 4, 5, 6, 7, 8, 9] if dense else list(range(1, 10)))
    assert weight not in optimizer.state, "the codec has taken over"
    handle.detach()
    alike(fingerprint(model))


def saved(rank, folder):
    """Train and save; return what must be averaged."""
    model, optimizer, handle = started()
    train(model, rank, range(4), optimizer=optimizer)
    halves = {"handle": handle.state_dict(), "optimizer": optimizer.state_dict()}
    torch.save(halves, folder / f"{rank}.pt")
    handle.detach()
    return held(handle, "residual", "second_moment")


def loaded(rank, folder, names, policy):
    """Continue on another number of ranks; return what was loaded."""
    model, optimizer, handle = started()
    names = [rank] if policy == "keep" else names
    every = [torch.load(folder / f"{each}.pt")["handle"] for each in names if each < 2]
    optimizer.load_state_dict(torch.load(folder / "0.pt")["optimizer"])
    handle.load_state_dict(every or None, policy)
    found = held(handle, "residual", "second_moment")
    state = handle._parameters["0.weight"].state
    steps = state.step, state.state_dict()["scalars"]["second_moment_steps"]
    train(model, rank, range(9, 10), optimizer=optimizer)
    alike(fingerprint(model))
    handle.detach()
    return [*found, steps]


@pytest.mark.parametrize(
    "policy",
    ["sum-and-split", *(pytest.param(p, marks=pytest.mark.full) for p in ("keep", "drop"))],
)
def test_another_world_size_averages_second_moments(two, three, tmp_path, policy):
    old = two.run(saved, folder=tmp_path)
    new = three.run(loaded, folder=tmp_path, names=[0, 1], policy=policy)
    mean = sum(moment.astype(np.float64) for _, moment in old) / 2
    total = sum(residual.astype(np.float64) for residual, _ in old)
    for rank, (residual, moment, steps) in enumerate(new):
        np.testing.assert_allclose(moment, mean, rtol=1e-6)
        assert steps == (4, 4)
        if policy == "sum-and-split":
            np.testing.assert_allclose(3.0 * residual, total, rtol=1e-5, atol=1e-9)
        elif policy == "keep" and rank < 2:
            np.testing.assert_array_equal(residual, old[rank][0])
        else:
            assert not residual.any()


def test_without_any_state_everything_starts_anew(three, two, tmp_path):
    two.run(saved, folder=tmp_path)
    for _, moment, (step, _) in three.run(loaded, folder=tmp_path, names=[], policy="drop"):
        assert step == 0
        assert not moment.any()


@on("two")
def test_after_detaching_it_is_torchs_adamw_with_the_moments_of_the_codec(rank):
    model, optimizer, handle = started()
    train(model, rank, range(3), optimizer=optimizer)
    handle.detach()
    assert sum(each in optimizer.state for each in model.parameters() if each.numel() > 1023) == 3
    twin = DistributedDataParallel(network())
    twin.load_state_dict(model.state_dict())
    other = AdamW(twin.parameters(), lr=0.01)
    other.load_state_dict(copy.deepcopy(optimizer.state_dict()))
    train(model, rank, range(3, 6), optimizer=optimizer)
    train(twin, rank, range(3, 6), optimizer=other)
    assert alike(fingerprint(model)) == fingerprint(twin)


@on("two")
def test_a_compiled_model_trains_like_the_eager_one(rank):
    prints = []
    for compiled in (False, True):
        model = DistributedDataParallel(network())
        called = torch.compile(model, backend="eager") if compiled else model
        optimizer = AdamW(model.parameters(), lr=0.01)
        with gradwire.torch.ddp.attach(called, gradwire.adam(0.05), optimizer=optimizer):
            train(called, rank, range(4), optimizer=optimizer)
        prints.append(fingerprint(model))
    assert prints[0] == prints[1]


def by_frameworks(rank, folder):
    """Resume from torch.distributed.checkpoint, and from one dict for all ranks."""
    model, optimizer, handle = started()
    train(model, rank, range(3), optimizer=optimizer)
    weights = copy.deepcopy(model.state_dict())
    kept = copy.deepcopy(get_optimizer_state_dict(model, optimizer))
    save({"gradwire": handle}, checkpoint_id=folder)
    gathered = handle.gathered_state_dict(None)
    prints = []
    for way in ("go on", "dcp", "gathered"):
        if way != "go on":
            model, optimizer, handle = started()
            model.load_state_dict(weights)
            some = StateDictOptions(strict=False)  # compressed parameters have nothing there
            set_optimizer_state_dict(model, optimizer, copy.deepcopy(kept), options=some)
        if way == "dcp":
            load({"gradwire": handle}, checkpoint_id=folder)
        elif way == "gathered":
            handle.load_state_dict(gathered)
        train(model, rank, range(3, 6), optimizer=optimizer)
        prints.append((fingerprint(model), plain(handle.state_dict())))
        handle.detach()
    assert prints[0] == prints[1] == prints[2]
    alike(prints[0][0])


def resharded(rank, folder):
    """Load what two ranks saved by torch.distributed.checkpoint."""
    for policy in get_args(Policy):
        model, optimizer, handle = started()
        load({"gradwire": handle.resharded(2, policy)}, checkpoint_id=folder)
        ((moment,),) = (held(handle, "second_moment"),)
        assert moment.any()
        train(model, rank, range(9, 10), optimizer=optimizer)
        alike((moment.tobytes(), fingerprint(model)))
        handle.detach()


def test_frameworks_save_and_load_both_halves(two, three, tmp_path):
    two.run(by_frameworks, folder=tmp_path)
    three.run(resharded, folder=tmp_path)


@on("two")
def test_checkpoints_of_other_codecs_have_the_keys_that_they_had():
    every = ["about", "measured", "momentum", "residual"]
    for made, keys in (
        (gradwire.topk(0.05), every),
        (gradwire.adam(), [*every, "second_moment"]),
    ):
        handle = started(made)[2]
        (state,) = handle.state_dict().values()
        handle.detach()
        assert sorted(state) == keys


@pytest.mark.parametrize("when", ["before", "after"])
@on("two")
def test_a_checkpoint_of_dense_training_goes_on_without_a_warning(rank, when):
    """Loaded before attach() and after it."""
    model = DistributedDataParallel(network())
    dense = AdamW(model.parameters(), lr=0.01)
    train(model, rank, range(3), optimizer=dense)
    state = copy.deepcopy(dense.state_dict())
    model = DistributedDataParallel(network())
    optimizer = AdamW(model.parameters(), lr=0.01)
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        if when == "before":
            optimizer.load_state_dict(state)
        with gradwire.torch.ddp.attach(model, gradwire.adam(0.05), optimizer=optimizer):
            if when == "after":
                optimizer.load_state_dict(state)
            train(model, rank, range(3, 6), optimizer=optimizer)
    assert not [each for each in seen if issubclass(each.category, PairingWarning)]


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
    model, optimizer, handle = started()
    train(model, rank, range(1), optimizer=optimizer)
    before = plain(handle.state_dict())
    optimizer.zero_grad()
    fails = mock.patch.object(squares, "sums_of", side_effect=MemoryError("too much"))
    with (
        fails if rank == 1 else contextlib.nullcontext(),
        pytest.raises(ExchangeError, match="too much"),
    ):
        model(batch(rank, 1)[0]).mean().backward()
    assert before == plain(handle.state_dict())
    handle.detach()
    alike(fingerprint(model))
