"""DistributedOptimizer(codec="auto"): whatever is decided, ranks do the same, nothing is lost."""

import numpy as np
import pytest

from gradwire._auto import SETTINGS
from tests.distributed.scripted import phases
from tests.horovod.launcher import HorovodRanks as Ranks
from tests.horovod.launcher import Launcher

UNCOMPRESSED, _, CODEC = SETTINGS
EVERYTHING = "everything"


def alike(results):
    """What all ranks have found."""
    assert all(each == results[0] for each in results)
    return results[0]


@pytest.mark.full
@pytest.mark.parametrize(
    ("passes", "spoiled"), [(1, False), (1, True), (2, False)], ids=["", "thrown away", "summed"]
)
def test_a_change_loses_nothing_and_leaves_no_residual_where_it_ends_dense(
    two: Ranks, passes: int, spoiled: bool
) -> None:
    first, second = two.run("auto.switching", passes=passes, spoiled=spoiled)
    assert first["modes"] == second["modes"]
    assert phases(first["modes"]) == [
        *(UNCOMPRESSED, CODEC, EVERYTHING, UNCOMPRESSED),
        *(CODEC, EVERYTHING, UNCOMPRESSED),
    ]
    for name in first["given"]:
        given = first["given"][name] + second["given"][name]
        left = first["final"].get(name, 0.0) + second["final"].get(name, 0.0)
        for found in (first, second):
            np.testing.assert_array_equal(found["applied"][name] + left, given)
    for found in (first, second):
        assert any(any(each.values()) for each in found["left"])
        assert not any(found["left"][-1].values())
    for one, other in zip(first["averages"], second["averages"], strict=True):
        for name in one:
            np.testing.assert_array_equal(one[name], other[name])
    assert first["errors"] == second["errors"]
    assert bool(first["errors"]) == spoiled


def test_ranks_decide_although_one_goes_on_to_another_collective_of_the_program(
    two: Ranks,
) -> None:
    first = alike(two.run("auto.between_backward_and_step"))
    assert set(first["losses"]) == {1.0}
    assert phases(first["modes"]) == [UNCOMPRESSED, CODEC, EVERYTHING, UNCOMPRESSED]


def test_after_a_reset_of_an_elastic_run_decisions_begin_anew(two: Ranks) -> None:
    results = two.run("auto.elastic")
    for found in results:
        assert found["back"]
        assert found["anew"]
        assert set(found["before"].values()) == {0.05}
        assert set(found["meanwhile"].values()) != {0.05}
        assert found["after"] == found["before"]
        assert found["print"] == results[0]["print"]


@pytest.mark.full
def test_a_rank_that_is_lost_before_a_look_is_an_error_that_elastic_knows(
    launcher: Launcher,
) -> None:
    ranks = Ranks(launcher, 2)
    try:
        (kind, found), other = ranks.try_run("auto.lost")
    finally:
        ranks.stop()
    assert other[0] == "died"
    assert kind == "returned", found
    assert [(name, internal) for name, _, internal in found["said"]] == [
        ("LostRankError", True)
    ] * 2
