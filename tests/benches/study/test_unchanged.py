"""What a codec gives at the learning rate of dense training."""

from typing import Any

import pytest

from benches.compare import blocks
from benches.study import unchanged


def record(method: str, ranks: int, rate: float, seed: int, value: float) -> dict[str, Any]:
    key = {"section": "text", "method": method, "ranks": ranks, "learning_rate": rate, "seed": seed}
    return {"key": key, "diverged": False, "points": [{"accuracy": value}]}


@pytest.mark.parametrize("page", ["auto.md", "choosing.md"])
def test_the_table_of_a_page_is_that_of_the_runs(page):
    text = (blocks.ROOT / "docs" / page).read_text("utf-8")
    assert blocks.find(text, unchanged.BLOCK).split("\n")[1:-1] == unchanged.lines()
    assert "learning rate" in text


def test_the_codec_at_the_rate_of_dense_training_stands_beside_its_best():
    runs = [record("dense AdamW", 2, 0.002, seed, 0.62) for seed in range(3)]
    runs += [record("dense AdamW", 2, 0.004, 0, 0.9)]  # one lucky run
    runs += [record("adam(0.01)", 8, 0.008, seed, 0.63) for seed in range(3)]
    (both,) = unchanged.pairs(runs)
    assert both.rate == 0.002
    line = "| Text | 8 | 0.002 | 0.008 | 4 | 62.00 | not tried |  | 63.00 |"
    assert unchanged.table([both])[-1] == line
    runs += [record("adam(0.01)", 8, 0.002, 0, 0.61)]
    (both,) = unchanged.pairs(runs)
    line = "| Text | 8 | 0.002 | 0.008 | 4 | 62.00 | 61.00 (1) | -1.00 | 63.00 |"
    assert unchanged.table([both])[-1] == line


def test_what_has_no_runs_of_all_seeds_is_left_out():
    runs = [record("dense AdamW", 2, 0.002, seed, 0.62) for seed in range(3)]
    assert unchanged.pairs([*runs, record("adam(0.01)", 2, 0.002, 0, 0.61)]) == []
