"""What channels of Gloo deliver, and that a rank which stays away is an error in time."""

from datetime import timedelta
from pathlib import Path

import pytest

from gradwire.torch.transport.process_group import PointToPoint
from tests.distributed.ranks import Ranks


def test_parts_of_any_length_come_to_their_ranks(ranks: Ranks) -> None:
    assert all(all(found) for found in ranks.run("transport.swapped"))


def test_a_group_that_one_rank_leaves_at_once_is_there_on_all(ranks: Ranks) -> None:
    assert ranks.run("transport.left_at_once") == list(range(ranks.world_size))


def test_leaving_does_not_wait_for_what_another_rank_never_starts(two: Ranks) -> None:
    assert max(two.run("transport.left_under_way")) < 30.0


def test_messages_are_gathered_in_the_order_of_ranks(ranks: Ranks, tmp_path: Path) -> None:
    assert all(all(found) for found in ranks.run("transport.gathered", store=str(tmp_path / "s")))


def test_a_rank_that_stays_away_is_an_error_after_the_timeout(two: Ranks) -> None:
    _, (said, seconds) = two.run("transport.alone")
    assert "Timed out" in said or "timed out" in said, said
    assert seconds < 30.0


@pytest.mark.parametrize("timeout", [None, timedelta(seconds=3)])
def test_a_message_that_was_given_up_is_an_error(timeout: timedelta | None) -> None:
    waited = []

    class Message:
        def __init__(self, came: bool) -> None:
            self.came = came

        def wait(self, *given: timedelta) -> bool:
            waited.append(given)
            return self.came

    PointToPoint([Message(True), Message(True)], timeout).wait()
    with pytest.raises(RuntimeError, match="given up"):
        PointToPoint([Message(True), Message(False)], timeout).wait()
    assert waited == [() if timeout is None else (timeout,)] * 4


def test_a_group_has_no_name_of_one_before_it(two: Ranks) -> None:
    first, second = two.run("transport.named")
    assert first == second
    assert len(set(first)) == 4
