"""From curves and times of steps to winners, on a small study that nobody has measured."""

from dataclasses import asdict, replace
from typing import Any

import pytest

pytest.importorskip("pandas", reason="the layer demo has pandas")

from benches.accuracy.plan import SECTIONS as TASKS
from benches.harness.results import Store, circumstances
from benches.study import reading, show
from benches.study.plan import (
    BF16,
    DENSE,
    LARGE,
    METHODS,
    NONE,
    POWER_CURVE,
    Cell,
    Plan,
    contestants,
)
from benches.study.reading import Run, Verdict, cell_key, reached
from benches.study.show import Findings

SLOW, FAST = 100_000_000, None
PLAN = Plan((LARGE, "clicks"), (SLOW, FAST), (2, 3, 4), (2, 4), seeds=1, turns=3)
SECONDS = {NONE: 1.0, "fp32, 5 MB": 12.0, "fp32, 25 MB": 11.0, "fp32, 128 MB": 13.0,
           "adam(0.05)": 2.0, "adam(0.01)": 1.2,
           "adam(0.002)": 1.15, "adam_onebit()": 1.3}  # fmt: skip
"""Of a step over the slow link; over the fast one dense methods take as long as no exchange."""
ENDS = {BF16: 0.8055, "adam(0.002), warm-up": 0.8}
"""Area at the end of a run, where it is not as of dense training."""


def rows(cell: Cell) -> list[dict[str, Any]]:
    found = []
    for name, method, bucket in contestants(cell.section):
        seconds = SECONDS.get(name, 6.0)
        if cell.link is None and method in DENSE:
            seconds = 1.0 if method == BF16 else 1.05
        turns = [seconds, 0.98 * seconds, 1.02 * seconds]
        found.append({"contestant": name, "method": method, "bucket": bucket, "dropped": False,
                      "seconds": turns})  # fmt: skip
    return found


def outcome(run: Run) -> dict[str, Any]:
    """Return what training gives: half of the area after half of the steps."""
    end = ENDS.get(run.method, 0.806) - 1e-3 * abs(run.learning_rate - 0.016)
    half = {"step": run.steps // 2, "loss": 0.5, "auc": end - 0.01}
    points = [half, {"step": run.steps, "loss": 0.4, "auc": end}]
    return {"points": points, "bytes_per_step": 1.0, "diverged": False, "seconds": 0.1, "facts": {}}


@pytest.fixture
def findings(tmp_path, monkeypatch) -> Findings:
    """All of the small study, with the curves of methods from `make accuracy` and the store."""
    dense = Run("clicks", "fp32", 2, 0.016, 0, TASKS["clicks"].steps)
    runs = [{"key": {**asdict(dense), "method": "dense AdamW"}, **outcome(dense)}]
    monkeypatch.setattr(reading, "_published", lambda: runs)
    kept = Store(tmp_path / "study.jsonl")
    for cell in PLAN.cells():
        load = [[0.0], [0.0]]
        found = {"rows": rows(cell), "load": load}
        kept.add({"key": cell_key(cell, PLAN), **circumstances(), **found})
    for ranks in PLAN.trained_ranks:
        for method in (*METHODS, POWER_CURVE):
            for rate in (0.016, 0.032):
                recorded = Run("clicks", method, ranks, rate, 0, TASKS["clicks"].steps)
                edition = [reading.EDITION, TASKS["clicks"].edition]
                key = {"kind": "curve", "edition": edition, **asdict(recorded)}
                kept.add({"key": key, **circumstances(), **outcome(recorded)})
    return Findings.of(PLAN, Store(kept.path))


@pytest.mark.parametrize(
    ("mark", "steps"),
    [(0.1, 100), (0.2, 100), (0.3, 150), (0.4, 200), (0.45, 300), (0.6, None)],
)
def test_steps_to_a_mark_lie_on_straight_lines_between_points(mark, steps):
    curve = [(100, 0.2), (200, 0.4), (300, 0.45)]
    assert reached(curve, mark) == (None if steps is None else pytest.approx(steps))


@pytest.mark.parametrize(
    ("seconds", "spread", "count", "verdict"),
    [
        (0.9, 0.01, 3, Verdict.FASTER),
        (0.99, 0.0, 3, Verdict.NOISE),  # a tie
        (0.9, 0.1, 3, Verdict.NOISE),  # bf16 has taken from 0.98 to 1.02
        (0.9, 0.0, 1, Verdict.NOISE),  # nobody knows its spread
        (0.4, 0.01, 3, Verdict.NOISE),  # faster than no exchange
        (1.1, 0.01, 3, Verdict.SLOWER),
    ],
)
def test_a_difference_within_the_spread_of_turns_has_no_winner(
    findings, seconds, spread, count, verdict
):
    before = findings.found[Cell(LARGE, 2, FAST)]
    best, (low, high) = before.results["adam(0.01)"], ((1 + s * spread) * seconds for s in (-1, 1))
    step = replace(best.step, seconds=seconds, low=low, high=high, count=count)
    results = {**before.results, "adam(0.01)": replace(best, step=step)}
    found = reading.Outcome(before.cell, results, replace(before.bound, low=0.5, seconds=0.6))
    assert found.compressed.method == "adam(0.01)"
    assert found.verdict is verdict
    wanted = {Verdict.NOISE: None, Verdict.FASTER: "adam(0.01)", Verdict.SLOWER: "bf16"}
    assert (found.winner and found.winner.method) == wanted[verdict]


def test_everything_is_shown_and_drawn(findings, tmp_path):
    text = show.write(findings, tmp_path)
    assert (tmp_path / "study.md").read_text() == f"{text}\n"
    assert "adam(0.01) 5.0 x" in text
    assert "of 12 cases, uncompressed training in" in text
    assert "(0.01)" in (tmp_path / show.FIGURE).read_text()
    assert findings.note == ""
    assert "missing" in replace(findings, cells={}).note
