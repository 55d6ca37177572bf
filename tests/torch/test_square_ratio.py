"""The measured ratio of the average's squares to those of the ranks."""

from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch

import gradwire
from gradwire.torch.engine.bucket_contents import BucketContents
from gradwire.torch.engine.parameter import ParameterSlot
from gradwire.torch.engine.square_ratio import (
    ENTRIES,
    INTERVAL,
    SUMS,
    SquareRatio,
    find_due,
    sample,
    sums_of,
)
from gradwire.torch.engine.step import Step


def sums(values: torch.Tensor, turn: int) -> torch.Tensor:
    out = torch.empty(SUMS + 1)
    sums_of(*sample(values, turn), out)
    return out


@pytest.mark.parametrize("numel", [1, 63, 64, 1600, 4097, ENTRIES, ENTRIES + 1, 1_000_000])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
def test_squares_of_sums_are_those_of_the_entries(numel: int, dtype: torch.dtype) -> None:
    values = torch.randn(numel, generator=torch.Generator().manual_seed(numel)).to(dtype)
    found = torch.stack([sums(values, turn) for turn in range(200)]).double()
    estimates, exact = found[:, :-1].square().sum(1), found[:, -1]
    # The standard error of 200 of them is 1.3 per cent; of a single entry there is none.
    assert (estimates / exact).mean() == pytest.approx(1.0, abs=0.06)
    assert (estimates / exact).std() < 1.3 * (2 / SUMS) ** 0.5


def test_every_row_of_a_large_tensor_has_its_turn() -> None:
    numel = 5 * ENTRIES
    places = torch.arange(numel)
    seen = torch.cat([sample(places, turn)[0].flatten() for turn in range(INTERVAL)])
    # Rows that do not fill a group of five are left out, fewer than five of them.
    assert seen.unique().numel() > numel - 5 * SUMS
    assert sample(places, 0)[0].numel() <= ENTRIES


@pytest.mark.parametrize(("common", "ranks"), [(0.0, 2), (0.0, 8), (1.0, 8), (0.5, 3)])
def test_the_ratio_of_ranks_is_found(common: float, ranks: int) -> None:
    generator = torch.Generator().manual_seed(0)
    numel, ratio = 20_000, SquareRatio()
    for step in range(64):
        same = torch.randn(numel, generator=generator) * common**0.5
        noise = torch.randn((ranks, numel), generator=generator) * (1 - common) ** 0.5
        total = sum(sums(same + each, step).double() for each in noise)
        assert isinstance(total, torch.Tensor)
        found = float(total[:-1].square().sum() / total[-1]) / ranks
        ratio = ratio.with_measurement(found, ranks)
    assert ratio.mean == pytest.approx(common + (1 - common) / ranks, rel=0.12)


def test_a_moment_taken_over_counts_with_what_it_was_made_with_at_first() -> None:
    ratio, factors = SquareRatio(0.5, 16).taken_over(), []
    for _ in range(20):
        factors.append(ratio.factor)
        ratio = ratio.with_measurement(0.25, 4)
    assert factors == [0.5] * 16 + [0.25] * 4
    assert ratio == SquareRatio(0.25, 16)


@pytest.mark.parametrize("steps", [15, 16, 20, 100, 10_000])
def test_a_corrected_moment_is_as_large_as_one_of_the_own_squares_alone(steps: int) -> None:
    beta2, mean, made_with, average = 0.999, 0.2, 0.5, 3.0
    moment = average * (1 - beta2 ** (steps - 15)) / made_with
    for _ in range(15):
        moment = beta2 * moment + (1 - beta2) * average / mean
    moment *= SquareRatio(mean, 16).correction(made_with, beta2, steps)
    assert moment / (1 - beta2**steps) * mean == pytest.approx(average)


def test_the_mean_forgets_and_stays_possible() -> None:
    ratio = SquareRatio()
    for found in [2.0] * 16:
        ratio = ratio.with_measurement(found, 4)
    assert ratio.mean == 1.0
    for found in [0.0] * 200:
        ratio = ratio.with_measurement(found, 4)
    assert ratio.mean == 0.25


@pytest.mark.parametrize(
    "saved",
    [None, 0.5, [0.5, 1], [0.0, 1, None], [1.5, 1, None], [0.5, 17, None], [0.5, 1, 2], {}],
)
def test_a_damaged_ratio_is_refused(saved: object) -> None:
    with pytest.raises((ValueError, TypeError)):
        SquareRatio.read("the ratio", saved)
    assert SquareRatio.read("the ratio", [0.5, 3, 1.0]) == SquareRatio(0.5, 3, 1.0)


def test_signs_are_the_same_everywhere() -> None:
    _, signs = sample(torch.zeros(1024), 0)
    assert signs[0, :12].tolist() == [-1, 1, -1, 1, 1, 1, 1, 1, 1, -1, -1, -1]


def test_a_parameter_is_measured_in_sixteen_steps_and_then_in_every_sixteenth() -> None:
    slot = ParameterSlot("w", torch.zeros(2000), gradwire.adam(), cast(Any, object()), rate=0.1)
    contents = BucketContents([slot], torch.float32)

    def is_due(step: int) -> bool:
        return bool(find_due(cast(Any, SimpleNamespace(contents=contents, step=Step(step)))))

    assert [step for step in range(40) if is_due(step)] == [0, 16, 32], "it has no gradient"
    due = []
    for step in range(40, 120):
        if is_due(step):
            due.append(step)
            slot.ratio = (slot.ratio or SquareRatio()).with_measurement(0.25, 4)
    assert due == [*range(48, 64), 64, 80, 96, 112]
    assert slot.ratio == SquareRatio(0.25, 16)
