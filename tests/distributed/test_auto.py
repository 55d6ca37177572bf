"""attach(model, "auto"): whatever is decided, ranks do the same, and nothing is lost."""

import itertools
import re

import numpy as np
import pytest

from gradwire.schedule.warm_up import RATIO, STEPS
from tests.distributed.ranks import Ranks


def conserved(results) -> None:
    for name in results[0]["given"]:
        given = sum(result["given"][name] for result in results)
        left = sum(result["final"].get(name, 0.0) for result in results)
        for result in results:
            np.testing.assert_array_equal(result["applied"][name] + left, given)


def phases(every):
    """What follows what."""
    found = []
    for each in every:
        if not found or found[-1] != each:
            found.append(each)
    return found


@pytest.mark.parametrize("spoiled", [False, True], ids=["", "some passes are thrown away"])
def test_a_change_loses_nothing_and_leaves_no_residual_where_it_ends_dense(two: Ranks, spoiled):
    results = two.run("auto.switching", spoiled=spoiled)
    first, second = results
    assert first["ratios"] == second["ratios"]
    # One step at ratio 1 ends the codec, or more if it was thrown away.
    for name in ("a", "b", "c"):
        follow = phases(each[name] for each in first["ratios"])
        assert 1.0 in follow
        assert (0.05, None) not in set(itertools.pairwise(follow))
    seen = {each["a"] for each in first["ratios"]} | {each["b"] for each in first["ratios"]}
    assert seen == {None, 0.05, 1.0}
    conserved(results)
    for left in (first["left"], second["left"]):
        assert any(any(each.values()) for each in left)
        assert not any(left[-1].values())
    for one, other in zip(first["averages"], second["averages"], strict=True):
        for name in one:
            np.testing.assert_array_equal(one[name], other[name])
    decision, text = first["report"]
    assert decision == "It was told so."
    assert decision in text
    assert first["errors"] == second["errors"]
    assert bool(first["errors"]) == spoiled
    assert {name for _, name, _ in first["errors"]} <= {"a"}


def test_what_stays_dense_trains_bit_for_bit_as_ddp_does(ranks: Ranks):
    for found in ranks.run("auto.plainly"):
        assert found["auto"] == found["ddp"]


def test_adamw_goes_on_with_its_second_moments(two: Ranks):
    first, second = two.run("auto.adam")
    assert first["prints"] == second["prints"]
    assert first["ratios"] == second["ratios"]
    assert first["moments"] == second["moments"]
    assert {None, 0.05, 1.0} == set(first["ratios"])
    assert all(np.isfinite(first["losses"]))
    for before, after, ratio in zip(
        first["moments"][:-1], first["moments"][1:], first["ratios"][1:], strict=True
    ):
        if ratio is None:  # dense: the optimizer has them, and has counted every step
            assert after is not None
            assert after[1] > 0.0
            if before is not None:
                assert after[0] == before[0] + 1
        else:
            assert after is None
    # What the last step with the codec has rounded to bfloat16, and no more, stays.
    assert first["residual"] < 1e-3
    assert first["ratios"][-1] is None
    assert all(each is None or each[0] == at + 1 for at, each in enumerate(first["moments"]))


def test_behind_another_adam_every_entry_is_sent_in_eight_bits(two: Ranks):
    first, second = two.run("auto.without_feedback")
    assert first == second
    assert "Float8" in first["codec"]
    assert phases(map(any, first["coded"])) == [False, True, False, True]
    assert [any(each) for each in first["coded"]] == [all(each) for each in first["coded"]]


def test_ranks_that_measure_different_times_decide_the_same(two: Ranks):
    first, second = two.run("auto.deciding")
    assert first == second
    plans = first["plans"]
    assert any("codec" in each for each in plans[40])
    assert set(plans[149]) == {"fp32"}
    assert any("codec" in each for each in plans[-1])
    assert "Mbit/s" in first["reasons"][-1]


@pytest.mark.parametrize("records", [1, 64])
def test_with_times_of_this_machine_ranks_decide_the_same(two: Ranks, records):
    """Also if most passes before a look are not timed."""
    first, second = two.run("auto.real", records=records)
    assert first == second
    assert max(first["known"]) <= records
    assert all(first["known"][1:])
    assert first["model"]
    assert re.search(r"\d ms", first["reason"])


def test_a_run_resumes_with_what_was_decided_also_from_and_into_a_codec(
    two: Ranks, three: Ranks, tmp_path
):
    results = two.run("auto.resuming", folder=str(tmp_path))
    for found in results:
        assert found["again"] == found["whole"]
        assert found["as codec"] == found["whole"]
        assert found["taken"] == found["alone on"]
        assert set(found["ratios"].values()) == {0.05}
        assert found["chosen"] == found["ratios"]
        assert found["steps"][1] == found["steps"][0] + 6
    assert results[0]["whole"] == results[1]["whole"]
    before = sum(found["left"].astype(np.float64).ravel() for found in results)
    others = three.run("auto.another_size", folder=str(tmp_path))
    assert {each["print"] for each in others} == {others[0]["print"]}
    for each in others:
        assert set(each["ratios"].values()) == {0.05}
    after = sum(each["left"]["0.weight"].astype(np.float64) for each in others)
    np.testing.assert_allclose(after, before, rtol=1e-5, atol=1e-7)


def test_the_codec_in_use_begins_with_a_warm_up_and_one_that_is_tried_does_not(
    two: Ranks, tmp_path
):
    results = two.run("auto.warming_up", folder=str(tmp_path))
    for kind in ("tried", "in use", "resumed", "constant"):
        assert len({found[kind]["print"] for found in results}) == 1
    for found in results:
        for kind in ("tried", "constant"):
            assert {ratio for ratio, _ in found[kind]["sent"].values()} == {None, 0.01}
        for kind, first in (("in use", 1), ("resumed", STEPS // 2 + 1)):
            sent = found[kind]["sent"]
            warm = {step for step, (ratio, _) in sent.items() if ratio == RATIO}
            cold = {step for step, (ratio, _) in sent.items() if ratio == 0.01}
            # A resumed run measures for some steps first, and is not to measure the warm-up.
            assert min(cold - set(range(first + 8))) == STEPS + 1 == max(warm) + 1
            assert min(warm) <= first + 8
            looks = {sent[step][1] for step in warm}
            assert len(looks) == 1, "a look would take a warm-up for the setting"
            assert sent[max(cold)][1] > max(looks)
            assert found[kind]["shown"][STEPS].endswith(f"epoch 0: ratio {RATIO}")
            assert found[kind]["shown"][STEPS + 1].endswith("epoch 1: ratio 0.01")
        assert found["constant"]["shown"][STEPS] == ""


def test_replicas_stay_equal_in_all_modes_of_ddp(two: Ranks):
    first, second = two.run("auto.in_other_ways")
    assert first == second
    for each in first.values():
        assert set(each["ratios"].values()) == {None}
        assert len(set(each["prints"])) == len(each["prints"])


def test_gradients_that_were_not_exchanged_are_exchanged_by_the_optimizer(two: Ranks):
    first, second = two.run("auto.held_back")
    assert first == second
    assert len(set(first)) == len(first)


def test_what_does_not_go_with_it_is_refused_by_name(two: Ranks):
    expected = [
        "TypeError: .*needs optimizer=",
        "TypeError: optimizer= takes a torch.optim.Optimizer",
        "ValueError: min_ratio is the smallest fraction .* got 100: .* pass 0.01",
        "ValueError: min_ratio must be greater than 0",
        "TypeError: min_ratio",
        "ValueError: .* does not work with schedule=, because",
        "ValueError: .* does not work with schedule=, because",
        "ValueError: .* does not work with hierarchy=, because",
        "ValueError: .* does not work with grad_scaler=, because",
        "TypeError: grad_scaler= takes a torch.amp.GradScaler or None",
        "ValueError: rank 1 and rank 0 attached with different codec",
        'ValueError: min_ratio= bounds what "auto" may choose',
        "ValueError: unknown codec .automatic.; choose from",
        "ValueError: .* does not work with skip_all_reduce_unused_params, which hides",
        "ValueError: regroup.. does not work with",
    ]
    for said in two.run("auto.refused"):
        assert len(said) == len(expected)
        for text, pattern in zip(said, expected, strict=True):
            assert re.match(pattern, text), text
