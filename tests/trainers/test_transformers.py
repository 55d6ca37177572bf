"""Transformers' Trainer, unmodified: the callback does all of it."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.distributed.ranks import Ranks

pytest.importorskip("transformers", reason="these tests need Transformers")


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"gradient_accumulation_steps": 2, "bf16": True, "eval_strategy": "steps", "eval_steps": 2},
        {"max_grad_norm": 0.0, "num_train_epochs": 1.5, "max_steps": -1},
    ],
    ids=["clipped", "accumulated", "epochs"],
)
def test_training_resumes_bit_for_bit(
    hugging_face: Callable[[int], Ranks], tmp_path: Path, options: dict[str, Any]
) -> None:
    found = hugging_face(2).run("transformers.resume", folder=str(tmp_path), **options)
    for each in found:
        assert each["parameters"]
        assert each["residuals"]
        assert each["left"]
        assert each["losses"][-1] < each["losses"][0] - 0.1
        assert each["logs"]["gradwire/compression"] > 10
        assert each["schedule"].endswith("epoch 0: ratio 0.02"), "the codec's ratio is 0.01"
    assert found[0]["fingerprint"] == found[1]["fingerprint"]
    # What Trainer clips are gradients, of each rank its own, or the update that all have in common.
    clipped = options.get("max_grad_norm") != 0.0
    assert (found[0]["norms"] != found[1]["norms"]) == clipped


def test_a_codec_that_sends_everything_trains_as_without(
    hugging_face: Callable[[int], Ranks], tmp_path: Path
) -> None:
    for found in hugging_face(2).run("transformers.dense", folder=str(tmp_path)):
        assert found["plain"] == found["all sent"]


@pytest.mark.full
def test_with_a_trainers_defaults_it_trains_as_well_as_without(
    hugging_face: Callable[[int], Ranks], tmp_path: Path
) -> None:
    first, second = hugging_face(2).run("transformers.suited", folder=str(tmp_path))
    assert first == second
    assert first["compressed"] < 1.1 * first["plain"] < 0.02  # losses, 4.2 in the first step
    assert first["compression"] > 10


def test_dense_checkpoints_go_in_and_out(
    hugging_face: Callable[[int], Ranks], tmp_path: Path
) -> None:
    first, second = hugging_face(2).run("transformers.crossed", folder=str(tmp_path))
    assert first == second
    (text,) = first["coded", "said"]
    assert "checkpoint-3 has no residuals" in text
    assert first["steps"] == {6}  # of second moments: three of them dense
    assert first["back", "said"] == []
    assert first["back", "held"] == ({6}, first["parameters"])
    dense, back = first["dense", "losses"], first["back", "losses"]
    assert back[3] == dense[3]
    assert back[-1] < back[3] - 0.2


def test_training_again_goes_on_with_residuals_and_epochs(
    hugging_face: Callable[[int], Ranks], tmp_path: Path
) -> None:
    found = hugging_face(2).run("transformers.again", folder=str(tmp_path))
    for each in found:
        assert each["same"]  # handle
        assert each["steps"] == (8, 16)
        assert each["kept"] == ["checkpoint-8/gradwire_0.pt", "checkpoint-8/gradwire_1.pt"]
        assert each["resumed"]
        assert each["after"] == 20
        # Two epochs, two more, the last of them again, and one more.
        assert each["epochs"] == [1, 3, 3, 4]
    assert {"train/loss", "train/gradwire/compression"} <= found[0]["written"]


def test_three_processes_continue_with_the_residuals_of_two(
    hugging_face: Callable[[int], Ranks], tmp_path: Path
) -> None:
    old = hugging_face(2).run("transformers.save", folder=str(tmp_path))
    new = hugging_face(3).run("transformers.load", folder=str(tmp_path))
    for name in old[0]:
        total = sum(each[name].astype(np.float64) for each in old)
        assert total.any()
        for left, *_ in new:
            np.testing.assert_array_equal(left[name], (total / 3).astype(np.float32))
    assert [each[1] for each in new] == [5, 5, 5]
    assert len({each[2] for each in new}) == 1
    # As many processes as saved, but as one node: each has a share of what the node has to send.
    halves = hugging_face(2).run("transformers.load", folder=str(tmp_path), hierarchy=2)
    for name in old[0]:
        mean = sum(each[name].astype(np.float64) for each in old) / 2
        np.testing.assert_allclose(
            np.concatenate([each[0][name] for each in halves]), mean, atol=1e-7
        )


@pytest.mark.full
def test_mistakes_are_told(hugging_face: Callable[[int], Ranks], tmp_path: Path) -> None:
    for said in hugging_face(2).run("transformers.mistakes", folder=str(tmp_path)):
        assert "because the optimizer is transformers.optimization.Adafactor" in said["steps"]
        assert said["other optimizer"].startswith(" PairingWarning: transformers.optimization.Ada")
        assert "gradients are sent as gradwire.float8()" in said["other optimizer"]
        assert said["topk"].startswith(" PairingWarning: torch.optim.AdamW has a first moment")
        assert "because there is a loss scaler: use bfloat16" in said["scaler"]
        assert said["scaler, no codec"].startswith(" PairingWarning: gradients cannot be clipped")
        assert said["not finite"].startswith("GradientError: the gradient of 'model.embed_tokens")
        assert said["after it"] == ""
        assert "ValueError: rank 1 cannot read its residuals" in said["a file is missing"]
        assert "there is no gradwire_1.pt" in said["a file is missing"]
        assert "RuntimeWarning: checkpoints of enable_jit_checkpoint" in said["no residuals"]
        assert "checkpoint-3 has no residuals" in said["no residuals"]
        assert said["one process"].startswith(" RuntimeWarning: there is only one process")
        assert said["one process"].endswith(" None")
