"""Messages between steps have a channel of their own: no process is aborted, no traceback lost."""

from pathlib import Path

import pytest

from tests.deadlines import stretched
from tests.distributed.conftest import SHORT
from tests.distributed.ranks import Ranks


@pytest.mark.full
@pytest.mark.parametrize("how", ["finally", "with"])
def test_a_rank_that_leaves_by_an_exception_keeps_it_and_the_others_get_a_typed_error(
    two: Ranks, how: str
) -> None:
    first, second = two.run("control.leaving_by_an_exception", how=how)
    assert first["error"] == "ExchangeError"
    assert second["error"] == "ArithmeticError"
    for found in (first, second):
        assert found["seconds"] < 60.0, "the timeout of the group is 120 s"


@pytest.mark.full
@pytest.mark.parametrize(
    ("acts", "said"),
    [
        (["epoch", "backward"], ["another rank did not call epoch()", "was not exchanged"]),
        (["backward", "load"], ["was not exchanged", "another rank did not call load_state"]),
        (["epoch", "detach"], ["rank 1 called detach(), this rank epoch()", ""]),
        (
            ["epoch", "load"],
            ["rank 1 called load_state_dict(), this", "rank 0 called epoch(), this"],
        ),
    ],
    ids=["epoch-backward", "backward-load", "epoch-detach", "epoch-load"],
)
def test_ranks_at_different_acts_get_a_typed_error(
    short_lived: Ranks, acts: list[str], said: list[str]
) -> None:
    results = short_lived.run("control.different_acts", acts=acts)
    for (text, steps), expected in zip(results, said, strict=True):
        assert expected in text
        assert steps == (3 if acts == ["epoch", "load"] else 2)


def test_detach_gives_up_waiting(two: Ranks, tmp_path: Path) -> None:
    first, second = two.run("control.detaching_alone", folder=str(tmp_path))
    assert 0.4 < first < stretched(60.0), "the timeout of the group is 120 s"
    assert second < stretched(60.0)


def test_detach_gives_up_a_bucket_that_is_under_way(short_lived: Ranks) -> None:
    first, _ = short_lived.run("control.half_way")
    assert first["seconds"] < stretched(SHORT)
    assert first["left"]  # the process groups, once the bucket's collective has timed out


def test_attach_is_a_context_manager(two: Ranks) -> None:
    for found in two.run("control.as_a_context"):
        assert found["same"]
        assert found["steps"] == 2
        assert "detached" in found["repr"]
