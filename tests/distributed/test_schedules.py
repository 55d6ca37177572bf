"""Schedules change what is sent on all ranks in the same step, and nothing is lost thereby."""

from pathlib import Path

import numpy as np
import pytest

from tests.distributed.ranks import Ranks


def conserved(results: list[dict[str, dict[str, np.ndarray]]]) -> None:
    for name in results[0]["given"]:
        given = sum(result["given"][name] for result in results)
        left = sum(result["final"].get(name, 0.0) for result in results)
        for result in results:
            np.testing.assert_array_equal(result["applied"][name] + left, given)


def test_a_warm_up_sends_less_from_epoch_to_epoch_and_keeps_residuals(two: Ranks) -> None:
    results = two.run("schedules.warm_up", dense=False)
    for result in results:
        assert [ratios["a"] for ratios in result["ratios"]] == [0.5, 0.2, 0.05, 0.05]
        sent = [each["a"] for each in result["sent"]]
        assert sent[0] > 2 * sent[1] > 4 * sent[2]
        assert all(all(left.values()) for left in result["left"])
    conserved(results)


def test_a_dense_warm_up_leaves_nothing_behind(two: Ranks) -> None:
    results = two.run("schedules.warm_up", dense=True)
    for result in results:
        assert [ratios["a"] for ratios in result["ratios"]] == [None, None, 0.05, 0.05]
        assert [each["a"] for each in result["sent"]][:2] == [4 * 64 * 40] * 2
        assert [any(left.values()) for left in result["left"]] == [False, False, True, True]
    conserved(results)


def test_accordion_follows_the_rule_of_section_6_1(two: Ranks) -> None:
    low, high = 0.5, 0.05
    for found in two.run("schedules.accordion"):
        ratios = [each["before"] for each in found]
        everything = {"a": low, "b": low, "c": low}
        assert ratios[0] == ratios[1] == ratios[2] == everything
        # Rank 0's gradients decide: those of rank 1 are a million times as large.
        norms = found[-1]["norms"]
        assert norms["a"] == pytest.approx(2 * 1.2 * np.sqrt(64 * 40), rel=1e-6)
        # After epoch 2 a is calm; but the learning rate was lowered with epoch 3.
        assert ratios[3] == everything
        assert ratios[4] == everything, "until the next look"
        assert ratios[5] == {"a": high, "b": high, "c": low}
        assert all(all(each["kept"].values()) for each in found[:-1])


def test_without_a_lower_learning_rate_only_the_norms_count(two: Ranks) -> None:
    for found in two.run("schedules.accordion", lowered=False):
        assert found[3]["before"] == found[4]["before"] == {"a": 0.05, "b": 0.5, "c": 0.5}


@pytest.mark.parametrize("kind", ["accordion", "warm-up", "dense", "scalecom", "dgc"])
def test_resume_in_the_middle_of_an_epoch_is_bit_for_bit(
    two: Ranks, kind: str, tmp_path: Path
) -> None:
    results = two.run("schedules.resume", kind=kind, folder=str(tmp_path))
    for rank, result in enumerate(results):
        assert result["same"]
        assert result["fingerprint"] == results[0]["fingerprint"]
        assert (result["measured"] > 0) == (kind == "accordion" and rank == 0)


def test_what_does_not_go_together_is_refused_on_all_ranks(two: Ranks) -> None:
    for found in two.run("schedules.refusals"):
        assert "has none; pass ratio= to it" in found["no ratio"]
        assert "only in how much they send" in found["other kind"]
        assert "rank 1 and rank 0 attached with different schedule" in found["other schedule"]
        assert "schedule must be one of gradwire.schedule." in found["not a schedule"]
        assert "epoch 3 has already begun, got epoch 2" in found["backwards"]
        assert "rank 1 and rank 0 began an epoch with different epoch" in found["other epoch"]
        assert set(eval(found["untouched"]).values()) == {0.1}
        assert "detached" in found["detached"]


def test_decisions_that_differ_between_ranks_are_not_loaded(short_lived: Ranks) -> None:
    for text, step in short_lived.run("schedules.decided_otherwise"):
        assert "different runs or steps" in text
        assert step == 3
