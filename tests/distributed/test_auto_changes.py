"""attach(model, "auto") resumed, restarted, interrupted: it goes on, and nothing is lost."""

from collections.abc import Callable

import numpy as np
import pytest

from tests.distributed.ranks import Ranks


@pytest.fixture
def one(kept: Callable[[int, str], Ranks]) -> Ranks:
    """One rank that serves all tests."""
    return kept(1, "cpu")


def test_ratios_that_this_run_does_not_try_become_some_that_it_does(two: Ranks):
    first, second = two.run("auto_changes.off_the_ladder")
    assert first == second
    loaded = {case: each[0] for case, each in first["found"].items()}
    assert loaded == {
        (0.03, None): {0.05},
        (1.0, None): {0.1},
        (0.01, 0.05): {0.05},
        (0.05, 0.001): {0.05},
    }
    for (_, bound), (_, later, reason) in first["found"].items():
        assert min(later) >= (bound or 0.01)
        assert reason.startswith("Using the codec"), reason


def test_a_flush_is_not_saved_and_does_not_outlive_a_restart(two: Ranks):
    first, second = two.run("auto_changes.while_all_is_sent")
    assert first == second
    assert first["saved"] == {0.05}
    assert first["restarted"] == 0
    # It goes on as before, decides anew, and leaves the codec by another flush.
    kinds = [
        each for at, each in enumerate(first["seen"]) if each != first["seen"][at - 1] or not at
    ]
    assert kinds == [{0.05}, {1.0}, {None}]


def test_ranks_that_had_decided_differently_go_on_with_the_latest_decision(two: Ranks):
    first, second = two.run("auto_changes.each_its_own")
    assert first == second
    assert set(first["ratios"].values()) == {0.05}
    assert first["step"] == 10


def test_a_single_rank_leaves_the_codec_and_loses_nothing(two: Ranks, one: Ranks, tmp_path):
    two.run("auto_changes.pair", folder=str(tmp_path))
    (found,) = one.run("auto_changes.alone", folder=str(tmp_path))
    for each in found.values():
        assert each["seen"][0] == {1.0}
        assert each["seen"][1:] == [{None}] * 4
        assert each["largest"][0] > 0.0
        assert max(each["largest"][1:]) <= 1e-2 * each["largest"][0]
    # What both ranks had left is in the first step.
    assert found["sgd"]["largest"][1:] == [0.0] * 5
    late = found["sgd"]["brought"][0] - found["sgd"]["left"]
    assert np.abs(late).max() < np.abs(found["sgd"]["brought"][0]).max()
    assert found["adamw"]["steps"] == 8 + 5


def test_gradients_accumulated_over_a_change_are_counted_once(two: Ranks):
    results = two.run("auto_changes.accumulating")
    for shift in (0, 1):
        assert {0.05, 1.0, None} <= set(results[0][shift]["seen"])
        for name in results[0][shift]["given"]:
            given = sum(result[shift]["given"][name] for result in results)
            left = sum(result[shift]["final"].get(name, 0.0) for result in results)
            for result in results:
                np.testing.assert_array_equal(result[shift]["applied"][name] + left, given)


def test_a_rank_lost_in_a_look_is_an_error_on_the_others(short_lived: Ranks):
    (kind, seen), other = short_lived.try_run("auto_changes.lost_in_a_look")
    assert other[0] == "died"
    assert kind == "returned", seen
    assert len(seen["errors"]) == 2, seen
    assert "rank 1 has failed, has ended or did not take part" in seen["errors"][0]
    assert seen["kept"] == "ExchangeError"
    assert "broken" in seen["repr"]
