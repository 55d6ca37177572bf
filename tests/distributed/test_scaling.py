"""Gradients that are not finite: nothing of a bad step stays, nothing of a good one is lost."""

import math
from typing import Any

import pytest

from tests.distributed.ranks import Ranks
from tests.distributed.test_parity import check_conservation

SEVERAL = {"bucket_cap_mb": 0.01}


def test_a_loss_scale_of_a_power_of_two_changes_no_bit(two: Ranks) -> None:
    for same, scales in two.run("scaling.scaled_like_unscaled"):
        assert same
        assert scales[-1] > scales[0], "the scale was to change on the way"


@pytest.mark.parametrize(
    ("bad", "value", "ddp"),
    [
        ("a", math.inf, SEVERAL),  # registered first, so its bucket is the last one
        ("c", math.nan, SEVERAL),
        ("b", -math.inf, {**SEVERAL, "gradient_as_bucket_view": True}),
        ("bias", math.inf, SEVERAL),  # travels dense
        ("a", math.inf, {**SEVERAL, "find_unused_parameters": True}),
    ],
    ids=["late-bucket", "early-bucket", "bucket-view", "dense", "find-unused"],
)
def test_a_bad_gradient_on_one_rank_makes_every_rank_skip_and_roll_back(
    ranks: Ranks, bad: str, value: float, ddp: dict[str, Any]
) -> None:
    results = ranks.run("scaling.bad_step", bad=bad, value=value, ddp=ddp)
    last = ranks.world_size - 1
    for result in results:
        assert result["had_residuals"]
        assert result["all_bad"]
        assert result["rolled_back"]
        assert result["skipped"]
        assert result["scale"] == 4.0
        assert f"{bad!r} on rank {last}" in result["error"]
        assert result["collectives"] > 5, "the test needs several buckets"
        assert result["fingerprint"] == results[0]["fingerprint"]
    check_conservation(results, tolerance=0.0 if last == 1 else 1e-3)


def test_an_average_that_overflows_is_rolled_back_too(two: Ranks) -> None:
    for result in two.run("scaling.overflowing_average"):
        assert result["was_waiting"] == 49984.0
        assert result["all_bad"]
        assert result["rolled_back"]


@pytest.mark.parametrize("bad", ["a", "c"], ids=["late-bucket", "early-bucket"])
def test_residuals_in_bfloat16_are_restored_to_the_bit(two: Ranks, bad: str) -> None:
    memory = {"kind": "residual", "dtype": "bfloat16"}
    codec = ("topk", {"ratio": 0.05, "memory": memory})
    for result in two.run("scaling.bad_step", bad=bad, value=math.nan, ddp=SEVERAL, codec=codec):
        assert result["all_bad"]
        assert result["had_residuals"]
        assert result["rolled_back"]
        assert result["skipped"]


@pytest.mark.parametrize("bad", ["a", "bias"], ids=["compressed", "dense"])
def test_without_a_scaler_every_rank_raises_and_may_go_on(two: Ranks, bad: str) -> None:
    results = two.run("scaling.without_scaler", bad=bad)
    for result in results:
        assert result["step"] == 2
        assert f"the gradient of {bad!r} on rank 1 has 2 non-finite value(s)" in result["text"]
        assert result["typed"] == (bad, 1, 2, 3)
        assert result["rolled_back"]
    check_conservation(results)
