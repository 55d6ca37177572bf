"""DiLoCo: buffers, frozen parameters, and parameters that are frozen or trained later."""

from pathlib import Path
from typing import Any

import pytest

from tests.distributed.ranks import Ranks


@pytest.mark.parametrize("options", [{}, {"fragments": 2, "delay": 3}], ids=["diloco", "streaming"])
def test_ranks_begin_with_all_tensors_of_rank_0_and_share_averages(
    ranks: Ranks, options: dict[str, Any]
) -> None:
    for found in ranks.run("untrained.shares", options=options):
        assert found["begun"] == []
        assert found["first"]
        assert found["at first"] == []
        assert found["shared"] == []
        assert found["restored"]
        assert {"norm.running_mean", "target.weight"} <= set(found["own"])
        assert found["unchanged"]
        # Sent with the first of the fragments, which follow each other within four inner steps.
        assert found["counted"] == 4 // options.get("fragments", 1)


def test_a_resumed_run_shares_the_same_averages(two: Ranks, tmp_path: Path) -> None:
    for found in two.run("untrained.resumes", folder=str(tmp_path)):
        assert found["pending"]
        assert found["same"] == []
        assert "'norm.running_mean' is float32 (32,) in this model" in found["refused"]


@pytest.mark.parametrize(
    ("how", "text"),
    [
        ("unfrozen", "['0.weight', '0.bias'] are trained, and are not exchanged"),
        ("added", "['3.weight', '3.bias'] are trained, and are not exchanged"),
        ("replaced", "['2.weight'] are trained, and are not exchanged"),
        ("frozen", ""),
        ("toggled", ""),
    ],
)
def test_a_change_of_the_trained_parameters_is_told(two: Ranks, how: str, text: str) -> None:
    for found in two.run("untrained.changes", how=how):
        assert text in found["error"]
        assert bool(text) == bool(found["error"]) == found["unchanged"]
        assert len(found["warnings"]) == (how == "frozen")


def test_buffers_of_other_shapes_are_refused(two: Ranks) -> None:
    for text in two.run("untrained.other_shapes"):
        assert "buffers or frozen parameters" in text


@pytest.mark.timeout(300)
def test_a_rank_that_joins_has_the_frozen_parameters_and_averages(
    three: Ranks, tmp_path: Path
) -> None:
    results = three.run("untrained.joins", folder=str(tmp_path))
    assert all(each["alone"] == results[0]["alone"] for each in results)
    late = results[-1]["found"]
    assert len(late) >= 6
    for step in late:
        for each in results:
            if step in each["found"]:
                same = [n for n, v in late[step].items() if each["found"][step][n] != v]
                assert not same, (step, same)
