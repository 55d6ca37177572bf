"""The outer step, and where a rank goes on: long runs on quadratic losses, and checkpoints."""

import json
from typing import Any

import numpy as np
import pytest
import torch

import gradwire
from gradwire.torch.diloco import DiLoCo, Membership
from gradwire.torch.diloco.fragments import OuterOptimizer
from gradwire.torch.transport.store import stores

ENTRIES, INNER, STEPS, RATE = 40, 30, 20_000, 0.02


def distances(codec: gradwire.Codec, outer: OuterOptimizer, delay: int) -> torch.Tensor:
    """Return how far two ranks' shared parameters are from the optimum, after every round.

    Each entry has its own curvature, and each rank an optimum of its own.
    """
    generator = torch.Generator().manual_seed(0)
    curvature = torch.logspace(0, -1.7, ENTRIES)
    optima = torch.randn(2, ENTRIES, generator=generator)
    own, shared, velocity = torch.zeros(2, ENTRIES), torch.zeros(ENTRIES), torch.zeros(ENTRIES)
    states = [codec.init_state(ENTRIES, stream=rank) for rank in range(2)]
    sent, mean, found = own.clone(), shared, []
    for step in range(1, STEPS + 1):
        own -= RATE * curvature * (own - optima)
        if step % INNER == 0:
            sent, mean = own.clone(), torch.zeros(ENTRIES)
            for rank, state in enumerate(states):
                frame = codec.encode((shared - own[rank]).numpy(), state)
                mean += torch.from_numpy(np.asarray(gradwire.decode(frame))) / 2
        if step % INNER == delay and step > delay:
            outer.step(shared, velocity, mean)
            for rank in range(2):
                outer.place(own[rank], shared, sent[rank] if outer.carry else None)
            found.append((shared - optima.mean(0)).abs().max())
    return torch.stack(found)


def worst(codec: gradwire.Codec, outer: OuterOptimizer, delay: int) -> float:
    """Return the largest distance in the last tenth of a run."""
    found = distances(codec, outer, delay)
    return float(found[-len(found) // 10 :].max())


def defaults(delay: int, mixing: float | None = None) -> OuterOptimizer:
    carry = mixing is None and delay > 0
    return OuterOptimizer(0.7, 0.9, True, mixing or 0.0, carry)


@pytest.mark.parametrize("delay", [6, *(pytest.param(n, marks=pytest.mark.full) for n in (1, 29))])
def test_a_delay_is_as_stable_as_none_over_20_000_steps(delay):
    assert worst(gradwire.dense(), defaults(0), 0) < 1e-4
    assert worst(gradwire.dense(), defaults(delay), delay) < 1e-4
    # What a sparse codec leaves for later makes the shared parameters move around the optimum.
    assert worst(gradwire.topk(0.1), defaults(0), 0) < 15
    assert worst(gradwire.topk(0.1), defaults(delay), delay) < 15


def test_a_share_that_is_kept_behind_a_residual_is_what_diverges():
    """Hence it is refused: progress that waits in the residual is sent again."""
    assert worst(gradwire.topk(0.1), defaults(1, 0.5), 1) > 1000


def test_outer_momentum_is_what_a_sparser_codec_does_not_bear_with_a_delay_or_without():
    codec = gradwire.topk(0.05)
    assert worst(codec, defaults(0), 0) > 1000
    for delay in (0, 6):
        assert worst(codec, OuterOptimizer(1.0, 0.0, True, carry=delay > 0), delay) < 15


@pytest.mark.parametrize(("momentum", "nesterov"), [(0.0, True), (0.9, True), (0.9, False)])
@pytest.mark.parametrize("mixing", [0.2, 0.5, 0.9])
def test_the_limit_of_a_mixing_is_where_it_diverges(momentum, nesterov, mixing):
    most = (1 + momentum) * (1 + mixing) / (mixing * (1 + 2 * momentum * nesterov))

    def end(lr: float) -> float:
        """How far apart they are in the end, if nothing is trained after the first move."""
        outer = OuterOptimizer(lr, momentum, nesterov, mixing)
        own, shared, velocity = (torch.tensor([x], dtype=torch.float64) for x in (1.0, 0.0, 0.0))
        for _ in range(3000):
            outer.step(shared, velocity, shared - own)
            outer.place(own, shared, None)
        return float((shared - own).abs())

    below, above = (
        OuterOptimizer(lr, momentum, nesterov, mixing) for lr in (0.97 * most, 1.03 * most)
    )
    below.check(gradwire.dense())
    assert end(below.outer_lr) < 1e-6
    with pytest.raises(ValueError, match=f"diverges at {most:.3g} or above"):
        above.check(gradwire.dense())
    assert not end(above.outer_lr) < 1e6


DELAYED: dict[str, Any] = {"inner_steps": 3, "delay": 2}


def made(model: torch.nn.Module, **options: Any) -> DiLoCo:
    membership = Membership(stores.HashStore())
    return DiLoCo(model, gradwire.topk(0.1), membership=membership, **DELAYED, **options)


def saved_after(steps: int) -> tuple[torch.nn.Module, dict[str, Any]]:
    """A model, and its checkpoint after so many inner steps."""
    model = torch.nn.Linear(40, 30)
    with made(model) as outer:
        for _ in range(steps):
            with torch.no_grad():
                for each in model.parameters():
                    each.sub_(torch.randn(each.shape), alpha=0.01)
            outer.step()
        return model, outer.state_dict()


def test_what_is_saved_of_a_delay_is_told_if_it_is_of_another_model():
    model, saved = saved_after(4)
    assert saved["rank0"]["sent"].keys() == {"weight", "bias"}
    saved["rank0"]["sent"]["weight"] = torch.zeros(3)
    with pytest.raises(ValueError, match=r"sent parameters come from another .*\['weight'\]"):
        made(model, state_dict=saved)


@pytest.mark.parametrize(
    ("position", "pending", "text"),
    [
        (
            {},
            ["weight"],
            r"averages of bias, weight are under way; .* averages of weight: .* fragments=",
        ),
        ({}, [], "averages of none"),
        (
            {"applied": 1},
            ["weight", "bias"],
            "averages of none are under way; the checkpoint has averages",
        ),
        ({"applied": 2}, ["weight", "bias"], "has applied 2 of 1 exchanges"),
        ({"sent": 3}, ["weight", "bias"], "has applied 0 of 3 exchanges, and there are 1 fragm"),
    ],
)
def test_what_is_under_way_must_be_all_there(position, pending, text):
    model, saved = saved_after(3)
    mine = saved["rank0"]
    mine["outer"] = json.dumps({**json.loads(mine["outer"]), **position})
    mine["pending"] = {name: mine["pending"][name] for name in pending}
    with pytest.raises(ValueError, match=text):
        made(model, state_dict=saved)
