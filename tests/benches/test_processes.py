"""Processes of benches: one that ends is noticed at once, and none stays behind."""

from contextlib import closing

import pytest

from benches.harness.link import Link
from benches.harness.processes import RankError, Ranks


def test_answers_come_in_the_order_of_ranks_and_a_rank_that_ends_is_noticed_while_others_wait():
    with closing(Ranks(Link(), 3, "tests.benches.answering")) as ranks:
        assert ranks.ready() == "first"
        assert ranks.ask(do="act") == [0, 1, 2]
        with pytest.raises(RankError, match="rank 1 ended with status 3; its last output"):
            ranks.ask(do="act", **{"0": "wait", "1": "3"})
        processes = [*ranks._processes]
        assert processes[0].poll() is None, "it was not waited for"
    assert all(process.poll() is not None for process in processes)
