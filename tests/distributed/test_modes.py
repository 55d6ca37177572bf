"""DDP's modes do what they promise, and residuals survive them."""

from typing import Any

import numpy as np
import pytest

from tests.distributed.ranks import Ranks
from tests.distributed.test_parity import check_conservation


def test_no_sync_accumulates_without_a_collective(two: Ranks) -> None:
    results = two.run("modes.accumulation")
    assert [result["while_accumulating"] for result in results] == [0, 0]
    check_conservation(results)


@pytest.mark.parametrize(
    "ddp", [{}, {"gradient_as_bucket_view": True}, {"bucket_cap_mb": 0.01}], ids=str
)
def test_an_unused_parameter_keeps_its_residual_and_loses_nothing(
    two: Ranks, ddp: dict[str, Any]
) -> None:
    results = two.run("modes.unused", ddp=ddp)
    for result in results:
        left = result["left"]
        assert left[0].any()
        assert result["grad_was_none"] == [False, True, True, False, False]
        for step in (1, 2):  # what a hook writes for it is dropped, so nothing may be taken out
            assert left[step].tobytes() == left[0].tobytes()
        # Used on the last rank only: the other rank's residual flows with it.
        assert left[3].tobytes() != left[2].tobytes()
    given = sum(result["given"] for result in results)
    rest = sum(result["left"][-1].astype(np.float64) for result in results)
    for result in results:
        np.testing.assert_array_equal(result["applied"] + rest, given)


def test_join_lets_finished_ranks_send_their_rest(two: Ranks) -> None:
    results = two.run("modes.uneven_inputs")
    assert results[0]["flowed"]
    assert results[0]["fingerprint"] == results[1]["fingerprint"]
    check_conservation(results)


def test_four_dtypes_come_out_as_in_plain_ddp(two: Ranks) -> None:
    for result in two.run("modes.dtypes"):
        for ours, plain in zip(result["ours"], result["plain"], strict=True):
            assert ours.keys() == plain.keys()
            for name, values in ours.items():
                np.testing.assert_array_equal(values, plain[name], err_msg=name)


def test_a_compiled_model_trains_like_the_eager_one(two: Ranks) -> None:
    for difference, collectives in two.run("modes.compiled"):
        assert difference < 1e-6
        assert collectives > 0


def test_detach_goes_back_to_plain_ddp_and_attach_works_again(two: Ranks) -> None:
    for result in two.run("modes.switching"):
        assert result["plain_again"]
        assert result["collectives_detached"] == 0
        assert "detach()" in result["refused"]
        assert "is detached" in result["detached"]
        assert result["compression"] > 2


def test_two_models_share_a_backward_pass(two: Ranks) -> None:
    first, second = two.run("modes.two_models")
    assert first == second


def test_a_model_that_is_forgotten_leaves_no_threads(two: Ranks) -> None:
    for found in two.run("modes.letting_go"):
        assert found == {"threads": 2, "alive": 0, "handle": False, "weight": False}


def test_a_model_over_a_subgroup(three: Ranks) -> None:
    first, second, outsider = three.run("modes.subgroup")
    assert outsider is None
    assert first == second
    assert first[1] == 2
