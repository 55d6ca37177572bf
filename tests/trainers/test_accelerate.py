"""Accelerate, unmodified: its loop, its checkpoints, its scaler, its accumulation."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.distributed.ranks import Ranks

pytest.importorskip("accelerate", reason="these tests need Accelerate")

CASES: dict[str, dict[str, Any]] = {
    "AdamW": {},
    "AdamW, accumulated, bf16": {"accumulate": 2, "precision": "bf16"},
    "AdamW, clipped": {"accumulate": 2, "clip": 0.05},
    "topk, scaler": {"codec": "gradwire.topk(ratio=0.02)", "scaler": True, "sgd": True},
}


@pytest.mark.parametrize("case", CASES)
def test_a_saved_state_resumes_bit_for_bit(
    hugging_face: Callable[[int], Ranks], case: str, tmp_path: Path
) -> None:
    found = hugging_face(2).run("accelerate.resume", folder=str(tmp_path), **CASES[case])
    for each in found:
        assert each["parameters"]
        assert each["residuals"]
        assert each["left"]
        assert each["step"] == 3
    assert found[0]["fingerprint"] == found[1]["fingerprint"]


@pytest.mark.parametrize(
    "options", [{}, {"accumulate": 2, "precision": "bf16"}], ids=["plain", "bf16"]
)
def test_a_codec_that_sends_everything_trains_as_without(
    hugging_face: Callable[[int], Ranks], options: dict[str, Any]
) -> None:
    for plain, compressed in hugging_face(2).run("accelerate.dense", **options):
        assert plain == compressed


def test_with_a_loss_scaler_updates_are_those_without(
    hugging_face: Callable[[int], Ranks],
) -> None:
    first, second = hugging_face(2).run("accelerate.scaled")
    assert first == second
    plain, scaled = first
    assert plain == scaled


def test_a_step_with_an_infinite_gradient_on_one_rank_is_skipped_on_all(
    hugging_face: Callable[[int], Ranks],
) -> None:
    found = hugging_face(2).run("accelerate.overflow")
    for each in found:
        assert each["skipped"] == [False, False, True, False, False, False]
        assert each["scale"] == 128.0
        assert each["step"] == 5
    assert found[0]["fingerprint"] == found[1]["fingerprint"]


@pytest.mark.parametrize("everywhere", [False, True], ids=["main process", "each node"])
@pytest.mark.parametrize("detach", [False, True], ids=["attached", "detached"])
def test_three_processes_continue_with_the_residuals_of_two(
    hugging_face: Callable[[int], Ranks], tmp_path: Path, everywhere: bool, detach: bool
) -> None:
    folder = str(tmp_path)
    old = hugging_face(2).run(
        "accelerate.save", folder=folder, everywhere=everywhere, detach=detach
    )
    new = hugging_face(3).run("accelerate.load", folder=folder, nodes=detach)
    for name in old[0]:
        total = sum(each[name].astype(np.float64) for each in old)
        assert total.any()
        if detach:  # one node of three ranks, each with a share of what the node has to send
            total = np.concatenate([left[name] for left, *_ in new]) * 3 - total
            np.testing.assert_allclose(total, 0.0, atol=1e-7)
            continue
        for left, *_ in new:
            np.testing.assert_array_equal(left[name], (total / 3).astype(np.float32))
    assert [each[1] for each in new] == [4, 4, 4]
    assert len({each[2] for each in new}) == 1


def test_a_model_that_is_attached_again_is_saved_once(
    hugging_face: Callable[[int], Ranks], tmp_path: Path
) -> None:
    assert hugging_face(2).run("accelerate.attached_again", folder=str(tmp_path)) == [2, 2]
    assert [each.name for each in tmp_path.glob("custom_checkpoint_*")] == [
        "custom_checkpoint_0.pkl"
    ]


def test_mistakes_are_told(hugging_face: Callable[[int], Ranks], tmp_path: Path) -> None:
    for said in hugging_face(2).run("accelerate.refused", folder=str(tmp_path)):
        assert "TypeError: attach() takes a model wrapped in" in said["not prepared"]
        assert "pass the optimizer inside it, .optimizer" in said["plain attach"]
        assert said["every pass"].startswith("UpdateError")
        assert said["one process"].startswith("None RuntimeWarning: there is only one process")
        assert "the residuals of 2 ranks are not loaded by one process" in said["one process loads"]
        assert "Warning" not in said["one process saves"]
        assert (
            "the checkpoint was saved by one process: residuals start from zero" in said["two load"]
        )
