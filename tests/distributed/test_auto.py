"""attach(model, "auto"): whatever is decided, ranks do the same, and nothing is lost."""

import itertools
import re
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest

from gradwire._auto import SETTINGS
from gradwire.schedule.warm_up import RATIO, STEPS
from tests.distributed.ranks import Ranks

UNCOMPRESSED, BFLOAT16, CODEC = SETTINGS
EVERYTHING = "everything"


@pytest.fixture
def one(kept: Callable[[int, str], Ranks]) -> Ranks:
    """One rank that serves all tests."""
    return kept(1, "cpu")


def phases(every: Sequence[Any]) -> list[Any]:
    """What follows what."""
    return [each for each, _ in itertools.groupby(every)]


def alike(results: Sequence[Any]) -> Any:
    """What all ranks have found."""
    assert all(each == results[0] for each in results)
    return results[0]


def conserved(results: Sequence[Any]) -> None:
    for name in results[0]["given"]:
        given = sum(result["given"][name] for result in results)
        left = sum(result["final"].get(name, 0.0) for result in results)
        for result in results:
            np.testing.assert_array_equal(result["applied"][name] + left, given)


ORDER = [
    *(UNCOMPRESSED, CODEC, EVERYTHING, UNCOMPRESSED),
    *(BFLOAT16, CODEC, EVERYTHING, UNCOMPRESSED),
]
"""The settings of `switching`, with the steps that send what is left."""


def switched(results: Sequence[Any], *, spoiled: bool) -> None:
    """Check that nothing was lost, and that no residual stays where the codec was left."""
    first = results[0]
    for each in results:
        assert each["modes"] == first["modes"]
        assert each["errors"] == first["errors"]
        assert any(any(left.values()) for left in each["left"])
        assert not any(each["left"][-1].values())
        for one, other in zip(first["averages"], each["averages"], strict=True):
            for name in one:
                np.testing.assert_array_equal(one[name], other[name])
    assert phases(first["modes"]) == ORDER
    conserved(results)
    assert bool(first["errors"]) == spoiled
    assert {name for _, name, _ in first["errors"]} <= {"a"}


@pytest.mark.parametrize("spoiled", [False, True], ids=["", "some passes are thrown away"])
def test_a_change_loses_nothing_and_leaves_no_residual_where_it_ends_dense(two: Ranks, spoiled):
    results = two.run("auto.switching", spoiled=spoiled)
    switched(results, spoiled=spoiled)
    decision, text = results[0]["report"]
    assert decision.startswith("Using uncompressed: 100 ms per step; measured 100 ms in bfloat16")
    assert decision in text


def test_owners_send_the_sums_that_they_have_kept_before_the_codec_is_left(four: Ranks):
    switched(four.run("auto.switching", owners=True), spoiled=False)


def test_what_stays_dense_trains_bit_for_bit_as_ddp_does(ranks: Ranks):
    for found in ranks.run("auto.plainly"):
        assert found["auto"] == found["ddp"]


def test_adamw_goes_on_with_its_second_moments(two: Ranks):
    first, second = two.run("auto.adam")
    for key in ("prints", "modes", "moments"):
        assert first[key] == second[key]
    assert all(np.isfinite(first["losses"]))
    assert {UNCOMPRESSED, CODEC, EVERYTHING, BFLOAT16} == set(first["modes"])
    after = [*first["modes"][1:], first["last"]]
    for at, (moments, mode) in enumerate(zip(first["moments"], after, strict=True)):
        if mode in (UNCOMPRESSED, BFLOAT16):  # the optimizer has them, and has counted every step
            assert moments[0] == at + 1
            assert moments[1] > 0.0
        else:
            assert moments is None
    # The last step with the codec has sent everything in float32.
    assert first["residual"] < 1e-6


def test_sgd_goes_on_with_its_momentum(two: Ranks):
    first = alike(two.run("auto.momentum"))
    for nesterov in (False, True):
        assert first[f"nesterov={nesterov}"] < 1e-4 * first["moved"]


def test_the_codec_of_sgd_with_momentum_gives_back_what_it_has_not_masked(two: Ranks):
    first = alike(two.run("auto.masked"))
    assert "MomentumCorrection" in first["codec"]
    assert phases(first["modes"]) == [
        *(UNCOMPRESSED, CODEC, EVERYTHING, UNCOMPRESSED),
        *(CODEC, EVERYTHING, UNCOMPRESSED),
    ]
    assert first["left"] < 1e-3  # what the last step with the codec has rounded to bfloat16
    kept = first["momentum"]
    for at in range(1, len(kept)):
        if first["modes"][at - 1] == EVERYTHING:
            before = [each for each in kept[:at] if each is not None][-1]
            assert kept[at] > 0.3 * before


def test_behind_another_adam_every_entry_is_sent_in_eight_bits(two: Ranks):
    first = alike(two.run("auto.without_feedback"))
    assert "Float8" in first["codec"]
    assert phases(first["modes"]) == [UNCOMPRESSED, CODEC, UNCOMPRESSED, CODEC]


@pytest.mark.parametrize("in_step", [False, True], ids=["", "clipped and exchanged in the step"])
def test_ranks_that_measure_different_times_decide_the_same(two: Ranks, in_step: bool):
    first = alike(two.run("auto.deciding", in_step=in_step))
    assert first["modes"][39] == CODEC
    assert first["reasons"][39] == (
        "Using the codec at ratio 0.01: 102 ms per step; measured 1020 ms uncompressed, "
        "612 ms in bfloat16."
    )
    assert first["modes"][-1] == UNCOMPRESSED
    assert phases(first["modes"])[:3] == [UNCOMPRESSED, BFLOAT16, CODEC]


def test_with_times_of_this_machine_ranks_decide_the_same(two: Ranks):
    first = alike(two.run("auto.real"))
    assert re.match(r"Using .*: [\d.]+ ms per step; measured .* ms .*\.$", first["decision"])


def test_a_loss_scaler_skips_steps_in_all_settings(two: Ranks):
    first = alike(two.run("auto.scaled"))
    assert {UNCOMPRESSED, BFLOAT16, CODEC} <= set(first["modes"])
    for at in range(1, len(first["scales"])):
        skipped = first["scales"][at] < first["scales"][at - 1]
        assert skipped == (at % 5 == 4)
        assert skipped == (first["prints"][at] == first["prints"][at - 1])


def test_within_join_nothing_is_measured(two: Ranks):
    first = alike(two.run("auto.joined"))
    assert first == {"mode": UNCOMPRESSED, "decision": "Nothing is measured within join()."}


def test_a_run_resumes_with_what_was_decided_also_from_and_into_a_codec(
    one: Ranks, two: Ranks, three: Ranks, tmp_path
):
    results = two.run("auto.resuming", folder=str(tmp_path))
    for found in results:
        assert found["again"] == found["whole"]
        assert found["as codec"] == found["whole"]
        assert found["taken"] == found["alone on"]
        assert set(found["ratios"].values()) == {0.05}
        assert found["setting"] == CODEC
        assert found["steps"][1] == found["steps"][0] + 6
    assert results[0]["whole"] == results[1]["whole"]
    before = sum(found["left"].astype(np.float64).ravel() for found in results)
    others = three.run("auto.another_size", folder=str(tmp_path))
    assert {each["print"] for each in others} == {others[0]["print"]}
    for each in others:
        assert set(each["ratios"].values()) == {0.05}
        assert each["kept"]
    after = sum(each["left"]["0.weight"].astype(np.float64) for each in others)
    np.testing.assert_allclose(after, before, rtol=1e-5, atol=1e-7)
    (alone,) = one.run("auto.another_size", folder=str(tmp_path))
    assert phases(alone["modes"]) == [CODEC, EVERYTHING, UNCOMPRESSED]
    assert not alone["kept"]
    assert alone["decision"] == "There is only one rank, so there is nothing to exchange."


@pytest.mark.full
def test_the_codec_in_use_begins_with_a_warm_up_and_one_that_is_probed_does_not(
    two: Ranks, tmp_path
):
    results = two.run("auto.warming_up", folder=str(tmp_path))
    for kind in ("probed", "in use", "resumed", "constant"):
        assert len({found[kind]["print"] for found in results}) == 1
    for found in results:
        for kind in ("probed", "constant"):
            assert {ratio for ratio, _ in found[kind]["sent"].values()} == {0.01}
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


@pytest.mark.full
def test_replicas_stay_equal_in_all_modes_of_ddp(two: Ranks):
    for each in alike(two.run("auto.in_other_ways")).values():
        assert {UNCOMPRESSED, BFLOAT16, CODEC} <= set(each["modes"])
        assert len(set(each["prints"])) == len(each["prints"])


@pytest.mark.full
def test_programs_that_ddp_runs_go_on(two: Ranks):
    found = alike(two.run("auto.programs"))
    twice = found.pop("twice")
    for name, each in found.items():
        assert each["auto"]["modes"][-1] == CODEC, name
        assert not each["auto"]["told"], name
    # Updates cannot be added up: the codec is not tried.
    assert set(twice["auto"]["modes"]) == {UNCOMPRESSED}
    assert twice["auto"]["print"] == twice["ddp"]["print"]
    assert "model.no_sync()" in twice["auto"]["told"][0]


def test_passes_that_begin_to_add_up_with_the_codec_are_an_error_that_says_what_to_do(two: Ranks):
    first = alike(two.run("auto.adding_later"))
    assert "model.no_sync()" in first["said"]


def test_what_is_not_yet_sent_is_not_saved_as_a_setting_and_does_not_outlive_a_restart(two: Ranks):
    for found in alike(two.run("auto.while_all_is_sent")).values():
        assert found["mode"] == EVERYTHING
        assert found["saved"] == CODEC
        assert phases(found["modes"]) == [EVERYTHING, UNCOMPRESSED]


def test_ranks_that_had_decided_differently_go_on_with_the_latest_decision(two: Ranks):
    first = alike(two.run("auto.each_its_own"))
    assert first["mode"] == CODEC
    assert first["step"] == 10


def test_a_rank_lost_in_a_look_is_an_error_on_the_others(short_lived: Ranks):
    (kind, seen), other = short_lived.try_run("auto.lost_in_a_look")
    assert other[0] == "died"
    assert kind == "returned", seen
    assert len(seen["errors"]) == 2, seen
    assert "rank 1 has failed, has ended or did not take part" in seen["errors"][0]
    assert seen["kept"] == "ExchangeError"
    assert "broken" in seen["repr"]


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
        "ValueError: rank 1 and rank 0 attached with different codec",
        'ValueError: min_ratio= is the ratio of the codec of "auto"',
        "ValueError: unknown codec .automatic.; choose from",
    ]
    for said in two.run("auto.refused"):
        assert len(said) == len(expected)
        for text, pattern in zip(said, expected, strict=True):
            assert re.match(pattern, text), text
