"""Checkpoints survive frameworks, memory formats and damage."""

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.distributed.ranks import Ranks


@pytest.mark.parametrize("schedule", ["constant", "warm-up", "accordion"])
def test_torch_distributed_checkpoint_resumes_bit_for_bit(
    two: Ranks, tmp_path: Path, schedule: str
) -> None:
    folder = str(tmp_path)
    for found in two.run("keeping.resume_by_dcp", folder=folder, schedule=schedule):
        assert found == {"same": [True] * 3, "stateful": True}


def test_a_checkpoint_that_is_written_while_training_goes_on_is_of_its_step(
    two: Ranks, tmp_path: Path
) -> None:
    for found in two.run("keeping.resume_from_async_save", folder=str(tmp_path)):
        assert found == {"same": True, "steps": True}


@pytest.mark.parametrize(("old", "new"), [(2, 3), (3, 2)])
def test_torch_distributed_checkpoint_into_another_number_of_ranks(
    two: Ranks, three: Ranks, tmp_path: Path, old: int, new: int
) -> None:
    ranks = {2: two, 3: three}
    folder = str(tmp_path)
    saved = ranks[old].run("keeping.save_by_dcp", folder=folder)
    arguments: dict[str, Any] = {"folder": folder, "old_size": old}
    summed = ranks[new].run("keeping.load_by_dcp", policy="sum-and-split", **arguments)
    kept = ranks[new].run("keeping.load_by_dcp", policy="keep", **arguments)
    dropped = ranks[new].run("keeping.load_by_dcp", policy="drop", **arguments)
    for name in saved[0]:
        total = sum(each[name].astype(np.float64) for each in saved)
        assert total.any()
        for result in summed:
            np.testing.assert_array_equal(result["left"][name], (total / new).astype(np.float32))
        for rank, result in enumerate(kept):
            if rank < old:
                np.testing.assert_array_equal(result["left"][name], saved[rank][name])
            else:
                assert not result["left"][name].any()
        assert not any(result["left"][name].any() for result in dropped)
    for result in (*summed, *kept, *dropped):
        assert (result["step"], result["after"]) == (3, 4)


def test_one_file_holds_all_ranks(ranks: Ranks, tmp_path: Path) -> None:
    size = ranks.world_size
    for rank, found in enumerate(ranks.run("keeping.gathered", folder=str(tmp_path))):
        assert found["same"] == [True] * (size + 1)
        assert found["lengths"] == [size] + [size if to == rank else 0 for to in range(size)]
        assert f"at most {size - 1}" in found["refused"]


def test_one_state_has_the_residuals_of_all_ranks(two: Ranks) -> None:
    for found in two.run("keeping.merged"):
        assert found["keys"] == ["rank0"]
        assert all(found["same"])
        assert found["none"] == {}


def test_a_checkpoint_does_not_depend_on_the_memory_format(two: Ranks) -> None:
    for found in two.run("keeping.memory_formats"):
        assert found == {
            "equal": True,
            "contiguous to channels_last": True,
            "channels_last to contiguous": True,
        }


@pytest.mark.parametrize("seed", [1, 2])
def test_damage_on_one_rank_is_refused_on_all_and_changes_nothing(two: Ranks, seed: int) -> None:
    first, second = two.run("damage.sweep", count=150, seed=seed)
    assert first["touched"] == second["touched"] == []
    assert first["outcomes"] == second["outcomes"]
    outcomes = [outcome for _, outcome in first["outcomes"]]
    refused = re.compile(r"rank [01] cannot load its state_dict|the ranks were given checkpoints")
    assert all(each == "taken" or refused.match(each) for each in outcomes)
    assert outcomes.count("taken") < 30  # a value that is as good as the one before
