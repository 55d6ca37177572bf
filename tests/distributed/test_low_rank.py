"""PowerSGD under DDP: many buckets over Gloo, error feedback, checkpoints, failures."""

import numpy as np
import pytest

from tests.distributed.ranks import Ranks


@pytest.mark.parametrize("keeps", [True, False], ids=["feedback", "none"])
def test_what_is_applied_has_low_rank_and_nothing_is_lost(ranks: Ranks, keeps: bool) -> None:
    results = ranks.run("low_rank.conserving", keeps=keeps)
    for result in results:
        assert result["ranks"] == [2] * 4
        assert result["dense"] == {"c", "bias", "scalar"}
    for name in ("a", "b"):
        given = sum(result["given"][name] for result in results)
        for result in results:
            np.testing.assert_array_equal(result["applied"][name], results[0]["applied"][name])
        if keeps:
            left = sum(result["left"][name].astype(np.float64) for result in results)
            np.testing.assert_allclose(results[0]["applied"][name] + left, given, atol=2e-3)
            assert np.abs(left).max() > 1.0


def test_an_average_of_that_rank_is_exact(two: Ranks) -> None:
    assert max(two.run("low_rank.exact")) < 1e-4


@pytest.mark.parametrize(
    ("keeps", "warm_start"), [(True, True), (True, False), (False, True)], ids=str
)
def test_resume_is_bit_for_bit(two: Ranks, keeps: bool, warm_start: bool) -> None:
    results = two.run("low_rank.resumed", keeps=keeps, warm_start=warm_start)
    for result in results:
        assert result["same"]
        assert result["fingerprint"] == results[0]["fingerprint"]


def test_a_step_that_does_not_count_leaves_no_trace(two: Ranks) -> None:
    results = two.run("low_rank.failing")
    for result in results:
        assert result["error"] == ("b", 1, 1, 3 * 30 + 4)
        assert result["undone"]
        assert result["step"] == 2
        assert result["discarded"]
        assert result["halved"]
        assert result["kept"]
        assert result["fingerprint"] == results[0]["fingerprint"]


def test_an_unused_parameter_keeps_its_residual(two: Ranks) -> None:
    for found in two.run("low_rank.unused"):
        assert found == {"a": True, "b": False, "any": True}
