"""How results are compared, and what the page says of it."""

import math

import pytest

pytest.importorskip("pandas", reason="the layer demo has pandas")

from benches.accuracy import pool, show, store
from benches.accuracy.plan import SECTIONS, Plan
from benches.accuracy.store import Planned
from benches.accuracy.summary import Result, Summary, allowed, summarize
from benches.harness import results
from tests.benches.accuracy import working


def result(method: str, *points: float, loss: float = 0.6) -> Result:
    return Result((method, 2), 0.001, points, loss, 1e4)


def summary(*best: Result) -> Summary:
    return Summary(SECTIONS["text"], 2400, best, best, [])


DENSE = result("dense AdamW", 60.0, 61.0, 62.0, loss=0.5)


def test_one_standard_error_is_allowed_at_one_per_cent_if_it_is_more_than_the_points():
    behind, error = summary(DENSE).behind(result("adam(0.01)", 60.5, 60.5, 60.5))
    assert behind == pytest.approx(0.5)
    assert error == pytest.approx(1 / math.sqrt(3))
    assert allowed("adam(0.01)", error) == error
    assert allowed("adam(0.01)", 0.0) == allowed("adam(0.01)", math.nan) == 0.2
    # Standard errors excuse nothing of the other targets.
    assert allowed("adam(0.002)", 9.0) == 0.5
    assert allowed("adam_onebit()", 9.0) == 0.2
    assert allowed("topk(0.01), AdamW", 9.0) is None


def test_a_finished_plan_gives_tables_and_a_figure_and_missing_rows_stay_out(tmp_path, monkeypatch):
    monkeypatch.setattr(pool, "train", working.pretend)
    work = Planned(Plan(("clicks",)), results.Store(tmp_path / "runs.jsonl"))
    pool.make(work, 1, None, lambda run, record: None)
    records = work.records()
    results.write(store.document(work.plan, records), tmp_path / "accuracy.json")
    found, summaries = show.published(tmp_path / "accuracy.json")
    blocks = show.page(found, summaries, "accuracy.json")
    best = " ".join(blocks[show.BEST].split())
    rate = f"{SECTIONS['clicks'].grid[4]:.4g}"
    assert f"| adam(0.01) | 2 | {rate} | 10.0 | 100 | 0.1990 | 80.10 ± 0.06 |" in best
    assert "**80.10**" in blocks[show.RATES]
    show.draw(summaries, tmp_path / "accuracy.svg")
    assert "adam(0.01)" in (tmp_path / "accuracy.svg").read_text()
    records = {run: each for run, each in records.items() if run.method != "adam_onebit()"}
    (less,) = summarize(work.plan, records)
    assert less.missing == [("adam_onebit()", 2), ("adam_onebit()", 8)]
    assert "| adam_onebit()" not in show.best([less]) + show.rates([less])
    assert "; 2 rows unfinished" in show.best([less])
