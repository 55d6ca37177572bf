"""``"auto"`` in the trainers: what they ask for reaches `gradwire.torch.ddp.attach`."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.distributed.ranks import Ranks

Find = Callable[[int], Ranks]


def agreed(found: list[Any]) -> Any:
    """Return what both ranks say."""
    first, second = found
    assert first == second
    return first


class TestLightning:
    @pytest.fixture
    def two(self, lightning_ranks: Find) -> Ranks:
        pytest.importorskip("lightning", reason="these tests need Lightning")
        return lightning_ranks(2)

    def test_a_resumed_run_goes_on_with_what_was_chosen(self, two: Ranks, tmp_path: Path) -> None:
        found = agreed(two.run("auto_lightning.resumed", folder=str(tmp_path)))
        assert found["whole"][1] > 12
        assert set(found["whole"][2].values()) == {0.05}
        assert found["rest"] == found["whole"]
        assert found["decision"].startswith("Using ")

    def test_a_fit_that_clips_decides_on_gradients(self, two: Ranks) -> None:
        found = agreed(two.run("auto_lightning.clipped"))
        assert "Float8" in found["codec"]
        assert found["decision"].startswith("Using the codec")


class TestAccelerate:
    @pytest.fixture
    def two(self, hugging_face: Find) -> Ranks:
        pytest.importorskip("accelerate", reason="these tests need Accelerate")
        return hugging_face(2)

    def test_a_loaded_state_goes_on_with_what_was_chosen(self, two: Ranks, tmp_path: Path) -> None:
        found = agreed(two.run("auto_hugging_face.resumed", folder=str(tmp_path)))
        step, ratios = found["saved"]
        assert step > 0
        assert set(ratios.values()) == {0.05}
        assert found["loaded"] == found["saved"]
        assert found["later"] == step + 1
        assert found["decision"].startswith("Using ")

    def test_where_every_pass_is_exchanged_it_does_without_the_codec(self, two: Ranks) -> None:
        assert "does not try the codec" in agreed(two.run("auto_hugging_face.every_pass"))


class TestTransformers:
    @pytest.fixture
    def two(self, hugging_face: Find) -> Ranks:
        pytest.importorskip("transformers", reason="these tests need Transformers")
        return hugging_face(2)

    def test_without_clipping_nobody_is_told_that_gradients_were_changed(
        self, two: Ranks, tmp_path: Path
    ) -> None:
        said, coded = agreed(two.run("auto_hugging_face.unclipped", folder=str(tmp_path)))
        assert coded
        assert not said

    def test_it_resumes(self, two: Ranks, tmp_path: Path) -> None:
        found = agreed(two.run("auto_hugging_face.trained", folder=str(tmp_path)))
        assert found["rest"] == found["whole"]
        assert found["logs"][-1] < found["logs"][0]
        assert found["decision"].startswith("Using ")
