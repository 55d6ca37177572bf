"""DistributedOptimizer(codec="auto"): whatever is decided, ranks do the same, nothing is lost."""

import itertools
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.horovod.launcher import HorovodRanks as Ranks
from tests.horovod.launcher import Launcher


def phases(every: Any) -> list[Any]:
    """What follows what."""
    return [each for each, _ in itertools.groupby(every)]


@pytest.mark.full
@pytest.mark.parametrize(
    ("passes", "spoiled"), [(1, False), (1, True), (2, False)], ids=["", "thrown away", "summed"]
)
def test_a_change_loses_nothing_and_leaves_no_residual_where_it_ends_dense(
    two: Ranks, passes: int, spoiled: bool
) -> None:
    first, second = two.run("auto.switching", passes=passes, spoiled=spoiled)
    assert first["ratios"] == second["ratios"]
    for name in ("a", "b", "c"):
        follow = phases(each[name] for each in first["ratios"])
        assert 1.0 in follow
        assert (0.05, None) not in set(itertools.pairwise(follow))
    assert any(len(set(each.values())) > 1 for each in first["ratios"])
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
    assert first["report"] == "It was told so."
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


@pytest.mark.full
def test_replicas_stay_equal_whatever_gradients_are(two: Ranks) -> None:
    first, second = two.run("auto.kinds")
    assert first == second
    _, ratios, codable = first["sparse"]
    assert ratios == ["(None, 0.05)", "(None, 1.0)", "(None, None)"]
    assert codable == [False, True, False]
    assert {count for _, count in first["frozen"]} == {0, 3}


def test_adamw_goes_on_with_its_second_moments(two: Ranks) -> None:
    first, second = two.run("auto.adam")
    assert first == second
    assert {None, 0.05, 1.0} == set(first["ratios"])
    for at, (moments, ratio) in enumerate(zip(first["moments"], first["ratios"], strict=True)):
        if ratio is None:  # the optimizer has them, and has counted every step
            assert moments[0] == at + 1
            assert moments[1] > 0.0
        else:
            assert moments is None


@pytest.mark.full
def test_ranks_that_measure_different_times_decide_the_same(two: Ranks) -> None:
    first, second = two.run("auto.deciding")
    assert first == second
    plans = first["plans"]
    assert any("codec" in each for each in plans[40])
    assert set(plans[149]) == {"fp32"}
    assert any("codec" in each for each in plans[-1])
    assert not any("bf16" in each for plan in plans for each in plan)
    assert "Mbit/s" in first["reasons"][-1]


def test_with_times_of_this_machine_ranks_decide_the_same(two: Ranks) -> None:
    first, second = two.run("auto.real")
    assert first == second
    assert first["model"]
    assert first["predicted"]
    assert first["looks"] > 2
    assert re.search(r"\d ms", first["reason"])
    for bandwidth, latency, overhead in first["links"]:
        assert bandwidth > 0.0
        assert latency >= 0.0
        assert overhead >= 0.0
    assert first["links"]


def test_the_end_of_an_all_reduce_is_noted_while_the_backward_pass_goes_on(two: Ranks) -> None:
    for found in two.run("auto.ends"):
        before, noted = found["known"]
        assert before < 3
        assert noted
        for (known, nbytes), numel in zip(found["buckets"], found["sizes"], strict=True):
            assert known
            assert nbytes == 4.0 * numel  # of two ranks, each sends as much as it has
        assert found["halvable"] == [False] * 3


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
        assert found["chosen"] == found["ratios"]
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
    "scaler": 'ValueError: "auto" does not work with grad_scaler=',
    "factor": "ValueError: min_ratio is the smallest fraction .* got 100: .* pass 0.01",
    "sum of steps": "ValueError: op=hvd.Sum does not work with a codec that sends steps",
    "a codec": 'ValueError: min_ratio= bounds what "auto" may choose',
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
    assert found["looked"] == 1
    assert [(name, internal) for name, _, internal in found["said"]] == [
        ("LostRankError", True)
    ] * 2
    assert "another rank" in found["said"][0][1]


def test_passes_that_begin_to_add_up_end_the_codec(two: Ranks) -> None:
    first, second = two.run("auto.adding")
    assert first == second
    assert first["coded"][19]
    assert not any(first["coded"][22:])
    assert "The codec is not used" in first["decision"]
