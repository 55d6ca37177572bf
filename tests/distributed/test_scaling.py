"""Gradients that are not finite: nothing of a bad step stays, nothing of a good one is lost."""

import math

import pytest

from tests.distributed.ranks import Ranks

SEVERAL = {"bucket_cap_mb": 0.01}


def test_a_loss_scale_of_a_power_of_two_changes_no_bit(two: Ranks) -> None:
    for same, scales in two.run("scaling.scaled_like_unscaled"):
        assert same
        assert scales[-1] > scales[0], "the scale was to change on the way"


def test_an_average_that_overflows_is_rolled_back_too(two: Ranks) -> None:
    for result in two.run("scaling.overflowing_average"):
        assert result["was_waiting"] == 49984.0
        assert result["all_bad"]
        assert result["rolled_back"]


@pytest.mark.parametrize("bad", ["a", "c"], ids=["late-bucket", "early-bucket"])
def test_residuals_in_bfloat16_are_restored_to_the_bit(two: Ranks, bad: str) -> None:
    memory = {"kind": "residual", "low_memory": True}
    codec = ("topk", {"ratio": 0.05, "memory": memory})
    for result in two.run("scaling.bad_step", bad=bad, value=math.nan, ddp=SEVERAL, codec=codec):
        assert result["all_bad"]
        assert result["had_residuals"]
        assert result["rolled_back"]
        assert result["skipped"]


@pytest.mark.parametrize("codec", ["adam", "dgc"])
def test_a_loss_scaler_that_attach_was_not_given_is_told(two: Ranks, codec: str) -> None:
    for texts in two.run("scaling.forgotten", codec=codec):
        assert len([each for each in texts if "attach(..., grad_scaler=)" in each]) == 1
