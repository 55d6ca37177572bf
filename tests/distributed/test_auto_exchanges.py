"""attach(model, "auto") changes the codec's exchange in mid-run: nothing is lost, ranks agree."""

import numpy as np
import pytest

from tests.distributed.ranks import Ranks
from tests.distributed.test_auto import conserved, phases

GATHER, OWNERS = "AllGather", "ReduceScatter"


@pytest.fixture(params=["three", "four"])
def several(request: pytest.FixtureRequest) -> Ranks:
    """As many ranks as have owners."""
    found = request.getfixturevalue(request.param)
    assert isinstance(found, Ranks)
    return found


@pytest.mark.parametrize("spoiled", [False, True], ids=["", "some passes are thrown away"])
def test_a_change_of_the_exchange_loses_nothing(several: Ranks, spoiled):
    results = several.run("auto_exchanges.switching", spoiled=spoiled)
    first = results[0]
    for each in results[1:]:
        for key in ("exchanges", "calls", "errors", "step"):
            assert each[key] == first[key]
        for name, applied in each["applied"].items():
            np.testing.assert_array_equal(applied, first["applied"][name])
    assert bool(first["errors"]) == spoiled
    conserved(results)
    order = [GATHER, OWNERS, None, GATHER]
    for name in ("a", "b", "c"):
        follow = phases(each[name] for each in first["exchanges"])
        assert follow[:1] == [None]
        assert follow[1 : 1 + len(order)] == order
        assert follow[-2:] == [OWNERS, None]
    # In one step some go this way and some that way, and are really sent so.
    both = [
        at for at, each in enumerate(first["exchanges"]) if {GATHER, OWNERS} <= {*each.values()}
    ]
    assert any({"AllGatherExchange", "OwnerExchange"} == first["calls"][at].keys() for at in both)
    # Owners kept what they had not sent, and it was sent before the end.
    assert any(any(each.values()) for each in first["left"])
    for each in results:
        assert not any(each["left"][-1].values())


def test_one_step_through_owners_sends_all_that_is_left_also_by_them(several: Ranks):
    results = several.run("auto_exchanges.emptied")
    for kind, first in results[0].items():
        conserved([each[kind] for each in results])
        for each in results:
            assert each[kind]["ways"] == first["ways"]
            for name, applied in each[kind]["applied"].items():
                np.testing.assert_array_equal(applied, first["applied"][name])
        for name in ("a", "b", "c"):
            ways = [each[name] for each in first["ways"]]
            before = {"gathered": [GATHER], "owned": [OWNERS], "both": [GATHER, OWNERS]}[kind]
            assert phases(ways) == [
                None,
                *((each, 0.05) for each in before),
                (OWNERS, 1.0),
                None,
            ]
            assert ways.count((OWNERS, 1.0)) == 1
            at = ways.index((OWNERS, 1.0))
            assert first["calls"][at].keys() == {"OwnerExchange"}
            left = [each[kind]["left"] for each in results]
            assert all(each[at - 1][name]["any"] for each in left)
            # Where a rank has no gradient, it has only sums that it owns.
            assert any(each[at - 1][name]["of others"] for each in left) == (kind != "gathered")
            assert not any(each[at][name]["any"] for each in left)


def test_second_moments_are_the_same_right_after_a_change_and_at_the_end(three: Ranks):
    results = three.run("auto_exchanges.moments")
    for found in results:
        for kind, steps in found.items():
            assert [each["print"] for each in steps] == [each["print"] for each in results[0][kind]]
        order = [each["exchange"] for each in found["changed"]]
        assert phases(order) == [None, GATHER, OWNERS, GATHER, OWNERS]
        assert OWNERS not in {each["exchange"] for each in found["gathered"]}
        for one, other in zip(found["changed"], found["gathered"], strict=True):
            np.testing.assert_array_equal(one["own"], other["own"])
        assert found["changed"][-1]["print"] != found["gathered"][-1]["print"]
    # When the codec is left, the optimizer goes on with the mean of what all ranks have, which have
    # nothing in common: averages are a third of it.
    order = [each["exchange"] for each in results[0]["left"]]
    assert phases(order) == [None, GATHER, OWNERS, None]
    at = len(order) - 1 - order[::-1].index(OWNERS)
    mean = sum(found["left"][at]["own"].astype(np.float64) for found in results) / 3
    for found in results:
        first = found["left"][at + 1]
        assert first["count"] == at + 2
        gradient = first["gradient"].astype(np.float64).reshape(mean.shape)
        assert 1 / 3 <= first["ratio"] < 0.5
        expected = 0.999 * mean * first["ratio"] + 0.001 * gradient**2
        np.testing.assert_allclose(first["shared"], expected, rtol=1e-5)


def test_a_run_resumes_through_owners_also_with_other_ranks(
    two: Ranks, three: Ranks, four: Ranks, tmp_path
):
    results = three.run("auto_exchanges.resuming", folder=str(tmp_path))
    for found in results:
        assert found["again"] == found["whole"] == found["as codec"] == results[0]["whole"]
        assert found["loaded"] == found["kept"] == {OWNERS}
        assert "0.weight" in found["saved"]
        assert not found["early"]
        assert found["late"] == ({GATHER}, {OWNERS}, results[0]["late"][2])
        assert all({GATHER, OWNERS} <= each for each in found["mixed"][:3])
        assert found["together"] == {"AllGatherExchange": 1}
        assert found["mixed"][3] == results[0]["mixed"][3]
    before = sum(found["left"].astype(np.float64).ravel() for found in results)
    for ranks, loaded, sent in (
        (four, OWNERS, "OwnerExchange"),
        (two, GATHER, "AllGatherExchange"),
    ):
        others = ranks.run("auto_exchanges.another_size", folder=str(tmp_path))
        assert {each["print"] for each in others} == {others[0]["print"]}
        for each in others:
            assert each["loaded"] == {loaded}
            assert each["calls"].keys() == {sent}
        after = sum(each["left"].astype(np.float64) for each in others)
        np.testing.assert_allclose(after, before, rtol=1e-5, atol=1e-7)


def test_saved_owners_that_are_none_are_refused(two: Ranks):
    for said in two.run("auto_exchanges.damaged"):
        assert len(said) == 3
        assert "must be a list of names, got '0.weight'" in said[0]
        assert "unknown parameters as owned: ['7.weight']" in said[1]
        assert "must be a list of names, got 3" in said[2]


def test_eight_bits_behind_another_adam_go_by_a_quantized_all_reduce(three: Ranks):
    results = three.run("auto_exchanges.in_eight_bits")
    assert results[0] == results[1] == results[2]
    assert phases(results[0]["exchanges"]) == [
        None,
        GATHER,
        "QuantizedAllReduce",
        None,
        "QuantizedAllReduce",
        GATHER,
    ]
    assert len(set(results[0]["prints"])) == 26


def test_ranks_decide_on_owners_and_the_report_says_so(three: Ranks):
    results = three.run("auto_exchanges.deciding")
    first = results[0]
    assert all(each == first for each in results)
    assert any("reduce-scatter" in each for each in first["plan"])
    assert OWNERS in first["exchanges"].values()
    assert first["decision"].startswith("Using the codec at ratio 0.01 with reduce-scatter")
    assert first["shown"]


def test_with_times_of_this_machine_three_ranks_decide_the_same(three: Ranks):
    results = three.run("auto.real", records=64)
    assert all(each == results[0] for each in results)
    assert results[0]["model"]
