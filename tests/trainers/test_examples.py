"""The examples run as they are, on two processes, and go on where they were."""

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.distributed.ranks import Ranks

EXAMPLES = Path(__file__).parents[2] / "examples"
pytest.importorskip("transformers", reason="these tests need Transformers and Accelerate")


@pytest.mark.parametrize("name", ["accelerate_train", "transformers_train", "torchrun_elastic"])
def test_an_example_has_at_most_forty_lines(name: str) -> None:
    assert len((EXAMPLES / f"{name}.py").read_text("utf-8").splitlines()) <= 40


def test_the_example_of_accelerate_goes_on_where_it_was(
    hugging_face: Callable[[int], Ranks], tmp_path: Path
) -> None:
    first, again = (
        hugging_face(2).run(
            "programs.run", name="accelerate_train", arguments=[str(tmp_path), epochs]
        )[0]
        for epochs in ("1", "2")
    )
    assert "epoch 1: loss" in first
    assert "gradwire, rank 0 of 2: 16 steps" in first
    assert "epoch 1: loss" not in again
    assert "epoch 2: loss" in again


def test_the_example_of_transformers_goes_on_where_it_was(
    hugging_face: Callable[[int], Ranks], tmp_path: Path
) -> None:
    first, again = (
        hugging_face(2).run(
            "programs.run", name="transformers_train", arguments=[str(tmp_path), steps]
        )[0]
        for steps in ("20", "30")
    )
    assert "gradwire, rank 0 of 2: 20 steps" in first
    assert "gradwire, rank 0 of 2: 10 steps" in again
    assert (tmp_path / "checkpoint-30" / "gradwire_1.pt").exists()


@pytest.mark.parametrize(("name", "blocks"), [("accelerate", 4), ("transformers", 2)])
def test_the_blocks_of_a_page_run(
    hugging_face: Callable[[int], Ranks], tmp_path: Path, name: str, blocks: int
) -> None:
    assert hugging_face(2).run("programs.page", name=name, folder=str(tmp_path)) == [blocks] * 2
