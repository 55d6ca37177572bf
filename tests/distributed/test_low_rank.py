"""PowerSGD under DDP: many buckets over Gloo, error feedback, checkpoints, failures."""

import zlib

import numpy as np
import pytest
import torch

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


def test_every_step_is_one_of_power_iteration(ranks: Ranks) -> None:
    """Beside the algorithm of the paper in float64, from the same gradients plus residuals.

    Bases of the same columns give the same ``P P^T``, and Q begins the next step up to a rotation.
    """
    results = ranks.run("low_rank.steps")
    for name, shape in (("a", (64, 40)), ("b", (50, 30))):
        seed = torch.Generator().manual_seed(zlib.crc32(name.encode()))
        q = torch.randn(shape[1], 2, generator=seed).double().numpy()
        for found in zip(*results, strict=True):
            matrices = [each["matrix"][name].astype(np.float64).reshape(shape) for each in found]
            p, _ = np.linalg.qr(sum(matrix @ q for matrix in matrices))
            q = sum(matrix.T @ p for matrix in matrices) / len(matrices)
            for matrix, each in zip(matrices, found, strict=True):
                average, left = (each[part][name].reshape(shape) for part in ("average", "left"))
                assert average.tobytes() == found[0]["average"][name].tobytes()
                np.testing.assert_allclose(average, p @ q.T, atol=1e-3)
                np.testing.assert_allclose(left, matrix - p @ q.T, atol=1e-3)


def test_a_rank_sends_one_factor_of_each_side(two: Ranks) -> None:
    flags = 33 + 1 + 32  # those of a bucket of one parameter, and whether all have one P
    expected = 4 * ((300 + 400) * 16 + flags)
    for found in two.run(
        "exchanges.wire_bytes", exchange="factors", quantize="Float32", ratio=0.1, steps=6
    ):
        assert found["said"] == expected
        # Gloo heads every transfer. P once more would be 19 200 bytes.
        assert expected < found["counted"] < expected + 3000


def test_ranks_that_round_differently_are_an_error_of_all(two: Ranks) -> None:
    for result in two.run("low_rank.rounding_differs"):
        ((step, text),) = result["errors"]
        assert step == 1
        assert "the ranks have different bits of P at bucket" in text
        assert result["undone"]


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
