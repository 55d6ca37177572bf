"""DistributedOptimizer(codec="auto"): whatever is decided, ranks do the same, nothing is lost."""

import re
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from gradwire._auto import SETTINGS
from tests.distributed.test_auto import alike, phases
from tests.horovod.launcher import HorovodRanks as Ranks
from tests.horovod.launcher import Launcher

UNCOMPRESSED, _, CODEC = SETTINGS
EVERYTHING = "everything"


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


@pytest.mark.full
def test_what_stays_dense_is_horovods_own_average(ranks: Ranks) -> None:
    # Two numbers have one sum. That of three depends on what Horovod sends together, as it comes;
    # and Horovod multiplies it by a rounded third.
    limit = 0.0 if ranks.world_size == 2 else 2e-6
    for cases in ranks.run("auto.plainly"):
        assert len(cases) == 5
        for name, found in cases.items():
            assert found["dense"], name
            assert found["steps"] == 0, name
            assert found["own"] <= limit, (name, found)
            assert found["detached"] <= limit, (name, found)


def test_adamw_goes_on_with_its_second_moments(two: Ranks) -> None:
    first = alike(two.run("auto.adam"))
    assert {UNCOMPRESSED, CODEC, EVERYTHING} == set(first["modes"])
    for at, (moments, mode) in enumerate(zip(first["moments"], first["modes"], strict=True)):
        if mode == UNCOMPRESSED:  # the optimizer has them, and has counted every step
            assert moments[0] == at + 1
            assert moments[1] > 0.0
        else:
            assert moments is None


def test_ranks_decide_although_one_goes_on_to_another_collective_of_the_program(
    two: Ranks,
) -> None:
    first = alike(two.run("auto.between_backward_and_step"))
    assert set(first["losses"]) == {1.0}
    assert phases(first["modes"]) == [UNCOMPRESSED, CODEC, EVERYTHING, UNCOMPRESSED]


def test_a_program_that_adds_up_exchanged_passes_never_sees_the_codec(two: Ranks) -> None:
    first = alike(two.run("auto.adding"))
    assert set(first["modes"]) == {UNCOMPRESSED}


@pytest.mark.full
def test_a_run_resumes_with_what_was_decided_and_a_single_rank_leaves_the_codec(
    two: Ranks, kept: Callable[[int], Ranks], tmp_path: Path
) -> None:
    results = two.run("auto.resuming", folder=str(tmp_path))
    for found in results:
        assert found["again"] == found["whole"]
        assert found["as codec"] == found["whole"]
        assert found["taken"] == found["alone on"]
        assert set(found["ratios"].values()) == {0.05}
        assert found["setting"] == CODEC
        assert found["steps"][1] == found["steps"][0] + 6
    assert results[0]["whole"] == results[1]["whole"]
    (single,) = kept(1).run("auto.alone", folder=str(tmp_path))
    before, held = single["before"]
    assert set(before.values()) == {0.05}
    assert held
    assert set(single["after"].values()) == {None}
    assert not single["left"]
    assert single["apart"] == 0.0
    assert "one rank" in single["reason"]


def test_after_a_reset_of_an_elastic_run_decisions_begin_anew(two: Ranks) -> None:
    results = two.run("auto.elastic")
    for found in results:
        assert found["back"]
        assert found["anew"]
        assert set(found["before"].values()) == {0.05}
        assert set(found["meanwhile"].values()) != {0.05}
        assert found["after"] == found["before"]
        assert found["print"] == results[0]["print"]


REFUSED = {
    "schedule": 'ValueError: "auto" does not work with schedule=',
    "factor": "ValueError: min_ratio is the smallest fraction .* got 100: .* pass 0.01",
    "sum of steps": "ValueError: op=hvd.Sum does not work with a codec that sends steps",
    "a codec": 'ValueError: min_ratio= is the ratio of the codec of "auto"',
    "ranks differ": "ValueError: rank 1 and rank 0 attached with different codec",
    "some with a codec": "ValueError: rank 1 and rank 0 attached with different auto",
}


def test_what_does_not_go_with_it_is_refused_by_name(two: Ranks) -> None:
    for found in two.run("auto.refused"):
        assert found.keys() == REFUSED.keys()
        for name, said in found.items():
            assert re.match(REFUSED[name], said, re.DOTALL), (name, said)


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
