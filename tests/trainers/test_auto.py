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

    @pytest.mark.full
    def test_dense_training_is_that_of_ddp(self, two: Ranks) -> None:
        plain, automatic = agreed(two.run("auto_lightning.dense"))
        assert plain == automatic

    def test_a_resumed_run_goes_on_with_what_was_chosen(self, two: Ranks, tmp_path: Path) -> None:
        found = agreed(two.run("auto_lightning.resumed", folder=str(tmp_path)))
        assert found["whole"][1] > 12
        assert set(found["whole"][2].values()) == {0.05}
        assert found["rest"] == found["whole"]
        assert found["decision"].startswith("Using ")

    def test_a_fit_that_clips_decides_wherever_it_exchanges(self, two: Ranks) -> None:
        found = agreed(two.run("auto_lightning.clipped"))
        assert "Float8" in found["in step: None"]["codec"]
        assert "AdamCorrection" in found["in step: True"]["codec"]
        for each in found.values():
            assert each["decision"].startswith("Using the codec")

    def test_mistakes_are_refused(self, two: Ranks) -> None:
        said = agreed(two.run("auto_lightning.mistakes"))
        expected = [
            'leave optimizer="auto"',
            "schedule=",
            "hierarchy=",
            "for a compression of 100 times pass 0.01",
            'is the ratio of the codec of "auto"',
            "min_numel",
            "configure_optimizers() returns 2",
            'leave optimizer="auto"',
            'is the ratio of the codec of "auto"',
        ]
        for text, part in zip(said, expected, strict=True):
            assert text.startswith("ValueError"), text
            assert part in text


class TestAccelerate:
    @pytest.fixture
    def two(self, hugging_face: Find) -> Ranks:
        pytest.importorskip("accelerate", reason="these tests need Accelerate")
        return hugging_face(2)

    @pytest.mark.parametrize("options", [{}, {"accumulate": 2}], ids=["plain", "accumulated"])
    def test_dense_training_is_that_of_ddp(self, two: Ranks, options: dict[str, Any]) -> None:
        plain, automatic = agreed(two.run("auto_hugging_face.dense", **options))
        assert plain == automatic

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

    def test_mistakes_are_refused(self, two: Ranks) -> None:
        said = agreed(two.run("auto_hugging_face.refused"))
        for text, part in zip(said, ("min_ratio", "schedule="), strict=True):
            assert part in text


class TestTransformers:
    @pytest.fixture
    def two(self, hugging_face: Find) -> Ranks:
        pytest.importorskip("transformers", reason="these tests need Transformers")
        return hugging_face(2)

    def test_dense_training_is_that_of_ddp(self, two: Ranks, tmp_path: Path) -> None:
        plain, automatic = agreed(two.run("auto_hugging_face.plain", folder=str(tmp_path)))
        assert plain == automatic

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

    def test_mistakes_are_refused(self, two: Ranks, tmp_path: Path) -> None:
        said = agreed(two.run("auto_hugging_face.mistakes", folder=str(tmp_path)))
        for text, part in zip(said, ("min_ratio", "hierarchy="), strict=True):
            assert part in text
