"""FSDP2 inside two nodes of two ranks, averaged between the nodes as "auto" decides."""

import itertools
import re

import numpy as np
import pytest

from tests.distributed.ranks import Ranks
from tests.distributed.test_auto import phases


@pytest.mark.parametrize("spoiled", [False, True], ids=["", "some passes are thrown away"])
def test_a_change_loses_nothing_and_leaves_no_residual_where_it_ends_dense(
    four: Ranks, spoiled: bool
) -> None:
    results = four.run("sharded_auto.switching", spoiled=spoiled)
    first = results[0]
    for name in ("parts.a.weight", "parts.b.weight", "parts.d.weight"):
        follow = phases(each[name] for each in first["ratios"])
        assert 1.0 in follow
        assert (0.05, None) not in set(itertools.pairwise(follow))
    assert {each["parts.a.weight"] for each in first["ratios"]} == {None, 0.05, 1.0}
    for found in results:
        for what in ("ratios", "errors", "report", "step"):
            assert found[what] == first[what]
        assert any(any(each.values()) for each in found["left"])
        assert not any(found["left"][-1].values())
    assert first["report"] == "It was told so."
    assert bool(first["errors"]) == spoiled
    assert {(name, rank) for _, name, rank in first["errors"]} <= {("parts.a.weight", 3)}
    for one, other in ((results[0], results[2]), (results[1], results[3])):  # the same shards
        for mine, theirs in zip(one["averages"], other["averages"], strict=True):
            for name in mine:
                np.testing.assert_array_equal(mine[name], theirs[name])
        for name, given in one["given"].items():
            left = one["final"].get(name, 0.0) + other["final"].get(name, 0.0)
            np.testing.assert_array_equal(one["applied"][name] + left, given + other["given"][name])


def test_what_stays_dense_trains_bit_for_bit_as_hybrid_sharding_of_torch(four: Ranks) -> None:
    for found in four.run("sharded_auto.plainly"):
        assert found["plain"] == found["accumulated"] == 0.0
        assert found["kept"] < 1e-7
        assert found["plain steps"] == found["accumulated steps"] == 0


def test_adamw_goes_on_with_its_second_moments(four: Ranks) -> None:
    results = four.run("sharded_auto.adam")
    first = results[0]
    assert {None, 0.05, 1.0} == set(first["ratios"])
    for found in results:
        assert all(found["alike"])
        assert found["finite"]
        assert found["ratios"] == first["ratios"]
        assert found["moments"] == first["moments"]
        # What the last step with the codec has rounded to bfloat16, and no more, stays.
        assert found["residual"] < 1e-3
    for at, (moments, ratio) in enumerate(zip(first["moments"], first["ratios"], strict=True)):
        if ratio is None:  # dense: the optimizer has them, and has counted every step
            assert moments[0] == at + 1
            assert moments[1] > 0.0
        else:
            assert moments is None


def test_with_times_of_this_machine_ranks_decide_the_same(four: Ranks) -> None:
    results = four.run("sharded_auto.real")
    first = results[0]
    assert all(each == first for each in results)
    assert first["alike"]
    assert first["buckets"] == 3
    assert first["model"]
    assert re.search(r"\d ms", first["reason"])


def test_a_program_that_adds_up_exchanged_passes_goes_on_without_the_codec(four: Ranks) -> None:
    for found in four.run("sharded_auto.added"):
        assert found["alike"]
        assert found["plan"] == {"fp32"}
        assert "accumulate within no_sync()" in found["said"]


def test_what_does_not_go_with_it_is_refused_by_name(four: Ranks) -> None:
    expected = [
        "TypeError: .*needs optimizer=",
        "ValueError: min_ratio is the smallest fraction .* got 100: .* pass 0.01",
        "ValueError: .* does not work with schedule=, because",
        "ValueError: .* does not work with grad_scaler=, because",
        'ValueError: min_ratio= bounds what "auto" may choose',
        "nothing",
    ]
    for said in four.run("sharded_auto.refused"):
        assert len(said) == len(expected)
        for text, pattern in zip(said, expected, strict=True):
            assert re.match(pattern, text), text
