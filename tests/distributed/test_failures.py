"""Failures are errors that can be read, on every rank, in time; never a hang."""

from pathlib import Path

import pytest

from gradwire.torch.transport import process_group as groups
from tests.distributed.ranks import Ranks

pytestmark = pytest.mark.waits  # for ranks that died

LIMIT = 12.0
"""Timeouts of the group after which a rank hangs that waits for another, which stays for 20."""


@pytest.mark.full
@pytest.mark.parametrize("how", ["before the hook", "raises"])
def test_a_rank_that_stops_does_not_hang_the_others(short_lived: Ranks, how: str) -> None:
    (kind, seen), _ = short_lived.try_run("failures.one_rank_fails", how=how)
    assert kind == "returned", seen
    assert seen["patiences"] < LIMIT
    assert "was not exchanged" in seen["error"]
    assert seen["kept"] == "ExchangeError"
    assert "stopped after an earlier error" in seen["later"]
    assert "broken" in seen["repr"]


def test_a_rank_that_dies_is_noticed_at_once(expendable: Ranks) -> None:
    (kind, seen), other = expendable.try_run("failures.one_rank_fails", how="dies")
    assert other[0] == "died"
    assert kind == "returned", seen
    assert seen["patiences"] < 0.5
    assert "another rank has stopped" in seen["error"]
    assert seen["rank"] == 1


def test_a_rank_that_ends_between_steps_is_named(expendable: Ranks) -> None:
    (kind, seen), other = expendable.try_run("failures.one_rank_is_absent", attaches=True)
    assert other[0] == "died"
    assert kind == "returned", seen
    assert seen["rank"] == seen["unpickled"] == 1
    assert "rank 1 has failed, has ended or did not take part" in seen["error"]
    assert "on this rank" not in seen["error"]


def test_a_rank_that_never_attaches_is_told_as_such(short_lived: Ranks) -> None:
    (kind, seen), _ = short_lived.try_run("failures.one_rank_is_absent", attaches=False)
    assert kind == "returned", seen
    assert "another rank did not call attach() in time" in seen["error"]  # a file says no more
    assert "network" not in seen["error"]


@pytest.mark.full
@pytest.mark.parametrize("how", ["before the hook", "raises"])
def test_what_ranks_save_in_an_emergency_loads_together(
    short_lived: Ranks, two: Ranks, how: str, tmp_path: Path
) -> None:
    errors = short_lived.run("failures.emergency", how=how, folder=str(tmp_path))
    assert errors == ["ExchangeError", "ArithmeticError"]
    first, second = two.run("failures.after_emergency", folder=str(tmp_path))
    assert first == second
    assert first[:2] == (2, 5)


def test_a_failure_to_encode_reaches_every_rank(two: Ranks) -> None:
    for found in two.run("failures.encoding_fails"):
        assert "rank 1 could not encode: " in found["first"]
        assert (
            "gradwire stopped after an earlier error: rank 1 could not encode: " in found["later"]
        )
        assert found["kept"] == "ExchangeError"
        assert found["plain"] == "works"


@pytest.mark.parametrize("name", ["default", "senders", "bfloat16", "scattered", "quantized"])
def test_averages_that_differ_are_noticed_a_step_later_on_every_rank(two: Ranks, name: str) -> None:
    first, second = two.run("failures.averages_differ", name=name)
    assert first == second
    assert first["steps"] == 4
    assert first["rank"] == 1
    assert (
        "ranks 0 and 1 got different averages from the same frames in the previous step"
        in first["text"]
    )


def test_a_failure_to_undo_is_an_error_and_no_hang(two: Ranks) -> None:
    for found in two.run("failures.undoing_fails"):
        assert "gradwire failed on this rank: ArithmeticError: cannot undo" in found["text"]
        assert found["kept"] == "ExchangeError"


def test_a_backward_that_fails_on_all_ranks_leaves_no_trace(two: Ranks) -> None:
    for found in two.run("failures.backward_fails_everywhere"):
        assert found == {
            "raised": True,
            "half_way": True,
            "rolled_back": True,
            "steps": 5,
            "error": "None",
        }


def test_ranks_that_disagree_are_told_so_when_attaching(two: Ranks) -> None:
    for texts in two.run("failures.disagreement"):
        for text, what in zip(texts, ("codec", "min_numel", "grad_scaler"), strict=True):
            assert "rank 1 and rank 0 attached with different " + what in text


def test_ranks_out_of_step_do_not_read_each_other(short_lived: Ranks) -> None:
    first, second = short_lived.run("failures.out_of_step")
    assert "rank 1 is at bucket 2, but this rank is at bucket 1" in first
    assert "rank 0 is at bucket 1, but this rank is at bucket 2" in second


def test_what_cannot_work_is_refused(two: Ranks) -> None:
    for found in two.run("failures.refusals"):
        assert "DistributedDataParallel, got Sequential" in found["not DDP"]
        assert "already has a communication hook" in found["other hook"]
        assert "wrap model.module in a new DistributedDataParallel" in found["other hook"]
        assert "find_unused_parameters instead" in found["skipping"]


@pytest.mark.parametrize(
    ("said", "rank"),
    [("wait timeout after 12000ms, keys: /default_pg/0//1//cpu//0/1", "1"), ("Wait timeout", None)],
)
def test_the_wait_for_a_rank_is_recognized(said: str, rank: str | None) -> None:
    found = groups._ABSENT.search(said)
    assert found is not None
    assert found[1] == rank
    assert groups._ABSENT.search("Connect timeout [10.0.0.1]:80") is None
