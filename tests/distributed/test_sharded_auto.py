"""FSDP2 inside two nodes of two ranks, averaged between the nodes as "auto" decides."""

import contextlib
import math

import numpy as np
import pytest
import torch
from torch import nn

import gradwire
from gradwire.schedule import Accordion, Constant
from gradwire.torch.ddp import GradientError
from tests.distributed.ranks import alike, on, together
from tests.distributed.scenarios.common import residuals
from tests.distributed.scripted import (
    BFLOAT16,
    CODEC,
    UNCOMPRESSED,
    mode_of,
    phases,
    scripted,
)
from tests.distributed.test_auto import ORDER, SWITCHES
from tests.distributed.test_sharded import attached, distance, fsdp, mesh, replica, sharded, steps

SHAPES = {"a": (33, 40), "b": (50, 30), "c": (40,), "d": (1200, 2)}


class One(nn.Module):
    """A parameter whose gradient is exactly what forward is given."""

    def __init__(self, shape):
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(shape))

    def forward(self, gradient):
        return (self.weight * gradient).sum()


class Given(nn.Module):
    """FSDP modules of one parameter each: so many buckets."""

    def __init__(self):
        super().__init__()
        self.parts = nn.ModuleDict({name: One(shape) for name, shape in SHAPES.items()})
        for each in (*self.parts.values(), self):
            fsdp.fully_shard(each, mesh=mesh()["shard"])

    def forward(self, gradients):
        return torch.stack([self.parts[name](each) for name, each in gradients.items()]).sum()


def integers(rank, step):
    """Small even integers, of which the means of two and of four ranks are exact."""
    random = np.random.default_rng([71, rank, step])
    return {
        name: torch.from_numpy(np.float32(8 * random.integers(-4, 5, shape)))
        for name, shape in SHAPES.items()
    }


def left_of(handle):
    """The residuals of this rank's shards."""
    return {name.split(".")[1]: each for name, each in residuals(handle).items()}


@pytest.mark.parametrize(
    "spoiled",
    [pytest.param(False, marks=pytest.mark.full), True],
    ids=["", "some passes are thrown away"],
)
@on("four")
def test_a_change_loses_nothing_and_leaves_no_residual_where_it_ends_dense(rank, spoiled):
    """Integers, so that sums are exact: in and out of the codec, whole and in part."""
    node = 2 * (rank // 2)
    given, applied = (dict.fromkeys(SHAPES, 0.0) for _ in range(2))
    modes, left, averages, errors = [], [], [], []
    model = Given()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    with (
        scripted(*SWITCHES),
        attached(model, "auto", mesh(), optimizer=optimizer, min_ratio=0.05) as handle,
    ):
        for step in range(32 if spoiled else 21):
            gradients = integers(rank, step)
            dropped, before = spoiled and step % 3 == 2, handle.error
            if dropped and step % 2 and rank == 3:
                gradients["a"][30, 4] = torch.nan
            optimizer.zero_grad()
            model(gradients).backward()
            if (error := handle.error) is not before:
                with pytest.raises(GradientError):
                    optimizer.step()
                errors.append((step, error.name, error.rank))
            modes.append(mode_of(handle))
            if dropped:  # no step: what was sent must come back
                continue
            optimizer.step()
            both = [integers(each, step) for each in (node, node + 1)]
            for name, each in model.parts.items():
                mean = (both[0][name] + both[1][name]) / 2
                given[name] += torch.chunk(mean, 2)[rank % 2].numpy().ravel()
                average = each.weight.grad.to_local().numpy().ravel().copy()
                applied[name] += 2 * average
                averages.append(average.tobytes())
            left.append(any(each.any() for each in left_of(handle).values()))
        final = left_of(handle)
        alike((modes, errors, handle.step))
    assert phases(modes) == ORDER
    assert any(left)
    assert not left[-1]
    assert bool(errors) == spoiled
    assert {(name, rank) for _, name, rank in errors} <= {("parts.a.weight", 3)}
    _, theirs, averaged, rest = together((rank, given, averages, final))[(rank + 2) % 4]
    assert averages == averaged, "the same shards"
    for name in given:
        kept = final.get(name, 0.0) + rest.get(name, 0.0)
        np.testing.assert_array_equal(applied[name] + kept, given[name] + theirs[name])


@pytest.mark.parametrize(
    "kind",
    ["accumulated", *(pytest.param(each, marks=pytest.mark.full) for each in ("plain", "kept"))],
)
@on("four")
def test_what_stays_dense_trains_bit_for_bit_as_hybrid_sharding_of_torch(rank, kind):
    """Also where passes add up; and but for rounding where they do so within a node."""
    models = sharded(mesh()), sharded(mesh()["shard"])
    for model in models:
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
        with contextlib.ExitStack() as stack:
            if model is models[1]:
                stack.enter_context(scripted())
                options = {"optimizer": optimizer}
                handle = stack.enter_context(attached(model, "auto", mesh(), **options))
            for step in range(8):
                optimizer.zero_grad()
                for part in range(1 if kind == "plain" else 2):
                    if kind == "kept":
                        model.set_requires_all_reduce(part == 1)
                    random = torch.Generator().manual_seed(100 * step + rank)
                    inputs = torch.randn((4, 32), generator=random)
                    model(inputs + part).square().mean().backward()
                optimizer.step()
    assert distance(*models) <= (1e-7 if kind == "kept" else 0.0)
    assert kind == "kept" or handle.step == 0


@on("four")
def test_adamw_goes_on_with_its_second_moments(rank):
    model = sharded(mesh()["shard"])
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    found = []
    with (
        scripted(CODEC, UNCOMPRESSED, CODEC, BFLOAT16),
        attached(model, "auto", mesh(), optimizer=optimizer, min_ratio=0.05) as handle,
    ):
        for step in range(19):
            steps(model, rank, range(step, step + 1), optimizer)
            replica(model)
            held, mode = optimizer.state.get(model[0].weight), mode_of(handle)
            moments = held and (float(held["step"]), held["exp_avg_sq"].full_tensor().sum().item())
            found.append((mode, moments))
            if mode in (UNCOMPRESSED, BFLOAT16):  # the optimizer has counted every step
                assert moments[0] == step + 1
                assert moments[1] > 0.0
            else:
                assert moments is None
        # What the last step with the codec has rounded to bfloat16, and no more, stays.
        assert np.abs(residuals(handle)["0.weight"]).max() < 1e-3
    alike(found)
    assert all(math.isfinite(each) for _, moments in found for each in moments or ())


@on("four")
def test_what_does_not_go_with_it_is_refused_by_name():
    model = sharded(mesh()["shard"])
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for codec, options, said in (
        ("auto", {"optimizer": None}, "needs optimizer="),
        ("auto", {"min_ratio": 100}, "min_ratio must be greater than 0 and at most 1, got 100"),
        ("auto", {"schedule": Accordion(0.5, 0.05)}, "does not work with schedule=, because"),
        (gradwire.topk(0.1), {"min_ratio": 0.1}, 'min_ratio= is the ratio of the codec of "auto"'),
    ):
        with pytest.raises((TypeError, ValueError), match=said):
            attached(model, codec, mesh(), **{"optimizer": optimizer, **options})
    attached(model, "auto", mesh(), optimizer=optimizer, schedule=Constant()).detach()
