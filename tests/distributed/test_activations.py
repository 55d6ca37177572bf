"""Packed activations under DDP with compressed gradients."""

import pytest

from tests.distributed.ranks import Ranks


def test_replicas_stay_equal_and_losses_fall_as_without_packing(two: Ranks) -> None:
    results = two.run("activations.training")
    for result in results:
        assert result["parameters 4"] == results[0]["parameters 4"]
        assert result["parameters 4"] != result["parameters None"]
        plain, packed = result["losses None"], result["losses 4"]
        assert packed[0] == plain[0], "forward is exact"
        assert sum(packed[-10:]) == pytest.approx(sum(plain[-10:]), rel=0.05)
        assert sum(packed[-10:]) < 0.7 * sum(packed[:10])
        assert result["steps"] == 60
        assert 0.14 < result["share"] < 0.165
