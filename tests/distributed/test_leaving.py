"""What a handle took, it gives back; and it takes no ranks but the model's."""

from pathlib import Path

import pytest

from tests.distributed.ranks import Ranks


@pytest.mark.parametrize("exchange", ["senders", "leader"])
def test_a_model_that_is_dropped_leaves_no_process_group(two: Ranks, exchange: str) -> None:
    assert two.run("leaving.dropped", exchange=exchange) == [True, True]


def test_a_refused_attach_leaves_no_process_group(two: Ranks) -> None:
    for found in two.run("leaving.refused"):
        assert len(found["texts"]) == 12
        assert found["gone"]


def test_a_group_of_other_ranks_than_the_model_is_refused(two: Ranks) -> None:
    results = two.run("leaving.other_ranks")
    for rank, found in enumerate(results):
        assert f"has ranks [{rank}], but the model has ranks [0, 1]" in found["fewer"]
        assert f"has ranks [0, 1], but the model has ranks [{rank}]" in found["more"]
    assert results[0]["same"] == results[1]["same"]


def test_detach_after_torch_distributed_was_initialized_again(
    expendable: Ranks, tmp_path: Path
) -> None:
    first, second = expendable.run("leaving.initialized_again", folder=str(tmp_path))
    assert first == second
    assert first[1] == 4
