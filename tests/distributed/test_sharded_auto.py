"""FSDP2 inside two nodes of two ranks, averaged between the nodes as "auto" decides."""

import re

import numpy as np
import pytest

from tests.distributed.ranks import Ranks
from tests.distributed.test_auto import BFLOAT16, ORDER, UNCOMPRESSED, phases


@pytest.mark.parametrize("spoiled", [False, True], ids=["", "some passes are thrown away"])
def test_a_change_loses_nothing_and_leaves_no_residual_where_it_ends_dense(
    four: Ranks, spoiled: bool
) -> None:
    results = four.run("sharded_auto.switching", spoiled=spoiled)
    first = results[0]
    assert phases(first["modes"]) == ORDER
    for found in results:
        for what in ("modes", "errors", "step"):
            assert found[what] == first[what]
        assert any(any(each.values()) for each in found["left"])
        assert not any(found["left"][-1].values())
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
    for found in results:
        assert all(found["alike"])
        assert found["finite"]
        assert found["modes"] == first["modes"]
        assert found["moments"] == first["moments"]
        # What the last step with the codec has rounded to bfloat16, and no more, stays.
        assert found["residual"] < 1e-3
    for at, (moments, mode) in enumerate(zip(first["moments"], first["modes"], strict=True)):
        if mode in (UNCOMPRESSED, BFLOAT16):  # the optimizer has counted every step
            assert moments[0] == at + 1
            assert moments[1] > 0.0
        else:
            assert moments is None


def test_what_does_not_go_with_it_is_refused_by_name(four: Ranks) -> None:
    expected = [
        "TypeError: .*needs optimizer=",
        "ValueError: min_ratio is the smallest fraction .* got 100: .* pass 0.01",
        "ValueError: .* does not work with schedule=, because",
        'ValueError: min_ratio= is the ratio of the codec of "auto"',
        "nothing",
    ]
    for said in four.run("sharded_auto.refused"):
        assert len(said) == len(expected)
        for text, pattern in zip(said, expected, strict=True):
            assert re.match(pattern, text), text
