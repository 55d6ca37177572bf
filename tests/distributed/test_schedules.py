"""Schedules change what is sent on all ranks in the same step, and nothing is lost thereby."""

from pathlib import Path

import numpy as np
import pytest

from gradwire.schedule.warm_up import RATIO, STEPS
from gradwire.torch.engine.scheduler import EPOCH
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


def test_accordion_goes_on_with_codecs_saved_when_the_default_was_an_all_gather(two: Ranks) -> None:
    for saved, loaded in two.run("schedules.accordion_of_before"):
        assert saved == loaded
        assert saved["b"] > saved["a"] > 0.0


def test_without_a_lower_learning_rate_only_the_norms_count(two: Ranks) -> None:
    for found in two.run("schedules.accordion", lowered=False):
        assert found[3]["before"] == found[4]["before"] == {"a": 0.05, "b": 0.5, "c": 0.5}


@pytest.mark.full
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


@pytest.mark.full
def test_codecs_that_send_steps_begin_with_a_warm_up(two: Ranks) -> None:
    results = two.run("schedules.begins")
    for kind in results[0]:
        assert len({found[kind][1] for found in results}) == 1
    for found in results:
        for kind in ("adam", "said", "named"):
            (first, _, _), (last, shown, many), (after, over, few) = found[kind][0]
            assert first["0.weight"] == last["0.weight"] == RATIO
            assert after["0.weight"] == 0.01
            assert shown.endswith(f"steps={STEPS}), epoch 0: ratio {RATIO}")
            assert over.endswith("epoch 1: ratio 0.01")
            assert many > few
        assert found["adam"][1] == found["said"][1]
        assert [sent["3.weight"] for sent, _, _ in found["named"][0]] == [None] * 3
        for kind, ratio in (("constant", 0.01), ("dense enough", 0.1), ("gradients", 0.01)):
            assert [sent["0.weight"] for sent, _, _ in found[kind][0]] == [ratio] * 3
        for kind in ("constant", "dense enough", "gradients", "one bit"):
            assert {shown for _, shown, _ in found[kind][0]} == {""}


@pytest.mark.full
@pytest.mark.parametrize("steps", [3, STEPS - 2, STEPS, STEPS + 2])
def test_a_warm_up_by_steps_goes_on_where_it_was_saved(
    two: Ranks, steps: int, tmp_path: Path
) -> None:
    for found in two.run("schedules.resumes", folder=str(tmp_path), steps=steps):
        assert found["same"]
        assert set(found["ratios"].values()) == {0.01}


@pytest.mark.full
def test_a_warm_up_goes_on_with_another_number_of_ranks(
    two: Ranks, three: Ranks, tmp_path: Path
) -> None:
    steps = STEPS - 3
    two.run("schedules.resumes", folder=str(tmp_path), steps=steps)
    results = three.run("schedules.resumes_on_others", folder=str(tmp_path), steps=steps)
    for found in results:
        assert list(found["ratios"].values()) == [RATIO] * 3 + [0.01] * 3
        assert found["print"] == results[0]["print"]


@pytest.mark.full
def test_a_run_from_before_there_was_a_warm_up_is_not_warmed_up_late(two: Ranks) -> None:
    for found in two.run("schedules.resumes_from_before"):
        (early, _), (late, schedule) = found[3], found[STEPS + 3]
        assert (early, late) == (RATIO, 0.01)
        assert schedule["epoch"] == 1


@pytest.mark.full
def test_the_buffers_of_a_warm_up_are_given_back(two: Ranks) -> None:
    for warm, after in two.run("schedules.gives_back"):
        assert 0 < 2 * after < warm


@pytest.mark.full
def test_epochs_that_nobody_tells_of_are_counted_by_steps(two: Ranks) -> None:
    for found in two.run("schedules.untold"):
        sent, shown, said = found["warm-up"]
        assert sent == [0.5] * EPOCH + [0.2] * EPOCH + [0.01] * 5
        assert shown[0].endswith("epoch 0 (handle.epoch() was not called): ratio 0.5")
        assert shown[-1].endswith("epoch 2 (handle.epoch() was not called): ratio 0.01")
        assert len(said) == 1
        assert f"handle.epoch(epoch) was not called in {EPOCH} steps, so {EPOCH} steps" in said[0]
        assert "BySteps(gradwire.schedule.WarmUp(ratios=(0.5, 0.2)), steps)" in said[0]
        assert found["warm-up saved"] is False
        sent, shown, said = found["dense"]
        assert sent == [None] * EPOCH + [0.01] * (EPOCH + 5)
        assert shown[0].endswith("dense")
        assert len(said) == 1
        sent, shown, said = found["late"]
        assert sent == [0.5] * EPOCH + [0.2] * 3 + [0.5] * (EPOCH + 2)
        assert shown[-1].endswith("epoch 0: ratio 0.5")
        assert len(said) == 1
        assert found["late saved"] is True
        sent, _, said = found["accordion"]
        assert set(sent) == {0.5}
        assert len(said) == 1
        assert "everything stays at low compression" in said[0]
        assert found["resumed"] == (0.5, []), "the epoch was told of before"


def test_a_warning_of_epochs_that_is_an_error_is_one_on_all_ranks(two: Ranks) -> None:
    results = two.run("schedules.strict")
    for found in results:
        assert "was not called in" in found["text"]
        assert found["step"] == EPOCH + 2
        assert found["ratio"] == 0.2
        assert found["print"] == results[0]["print"]


def test_that_nothing_is_compressed_is_said(two: Ranks) -> None:
    for found in two.run("schedules.idle"):
        for kind, text in (
            ("one rank", "There is only one rank, so there is nothing to exchange"),
            ("small", "none of 8 parameters"),
            ("matrices", "min_ndim=3 dimensions"),
            ("frozen", "none of 8 parameters is trained"),
        ):
            (said,), shown = found[kind]
            assert text in said
            assert shown == said
        assert found["compressed"] == ([], "")
        assert found["one rank, auto"] == (
            [],
            "There is only one rank, so there is nothing to exchange.",
        )
        assert found["small, auto"][0] == []
