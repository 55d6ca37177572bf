"""How results are compared, and what the page says of it."""

import math

import pytest

from benches.accuracy import document, show, store, tables
from benches.accuracy.plan import SECTIONS, Plan
from benches.accuracy.pool import Pool
from benches.accuracy.store import Planned, Store
from benches.accuracy.summary import Result, Summary, verdict
from tests.benches.accuracy import working


def result(method: str, *points: float, ranks: int = 2) -> Result:
    return Result(method, ranks, 0.001, points, 0.5, 1e4)


DENSE = result("dense AdamW", 60.0, 61.0, 62.0)


def test_a_mean_has_the_standard_error_of_its_seeds():
    assert DENSE.mean == 61.0
    assert DENSE.error == pytest.approx(1 / math.sqrt(3))
    assert math.isnan(result("dense AdamW", 60.0).error)


def test_one_standard_error_is_allowed_at_one_per_cent_if_it_is_more_than_the_points():
    found = verdict(result("adam(0.01)", 60.5, 60.5, 60.5), DENSE)
    assert found.behind == pytest.approx(0.5)
    assert found.error == pytest.approx(1 / math.sqrt(3))
    assert found.allowed == pytest.approx(found.error)
    assert found.passed


def test_two_tenths_of_a_point_are_allowed_at_one_per_cent_in_any_case():
    dense = result("dense AdamW", 61.0, 61.0, 61.0)
    assert verdict(result("adam(0.01)", 60.85, 60.85, 60.85), dense).passed
    assert not verdict(result("adam(0.01)", 60.75, 60.75, 60.75), dense).passed
    assert verdict(result("adam(0.01)", 60.85), result("dense AdamW", 61.0)).allowed == 0.2


@pytest.mark.parametrize(
    ("method", "allowed"), [("adam(0.002), warm-up", 0.5), ("adam_onebit()", 0.2)]
)
def test_standard_errors_excuse_nothing_of_the_other_aims(method, allowed):
    found = verdict(result(method, 58.0, 61.0, 62.0), DENSE)
    assert found.allowed == allowed
    assert not found.passed


def test_methods_without_an_aim_have_no_verdict():
    assert verdict(result("topk(0.01), AdamW", 50.0), DENSE).passed is None


def summary(*best: Result) -> Summary:
    return Summary(SECTIONS["text"], 2400, 3, (), best, best)


def test_the_baseline_has_as_many_ranks_if_there_is_one():
    eight = result("dense AdamW", 59.0, ranks=8)
    assert summary(DENSE, eight).dense(8) is eight
    assert summary(DENSE).dense(8) is DENSE


def test_a_failed_aim_is_said_with_its_distance():
    dense = result("dense AdamW", 61.0, 61.0, 61.0)
    lines = tables.verdicts(
        summary(
            dense,
            result("adam(0.01)", 61.5, 61.5, 61.5),
            result("adam(0.002), warm-up", 60, 60, 60),
        )
    )
    first, second = lines
    assert "0.50 ± 0.00 points ahead of dense AdamW: holds (at most 0.20 behind)" in first
    assert "1.00 ± 0.00 points behind dense AdamW: **fails by 0.50** (at most 0.50" in second


def test_a_table_counts_bytes_against_a_ring_of_the_same_ranks():
    dense = Result("dense AdamW", 2, 0.001, (61.0,), 0.5, 4e6)  # twice half of 4 MB
    eight = Result("adam(0.01)", 8, 0.002, (61.0,), 0.5, 7e4)
    cells = [cell.strip() for cell in tables.best(summary(dense, eight))[-1].split("|")]
    assert cells[1:6] == ["adam(0.01)", "8", "0.002", "70.0", "100"]


def test_a_finished_plan_gives_a_page_and_a_figure(tmp_path):
    plan = Plan(("clicks",))
    kept = Store(tmp_path)
    with Pool(1, target=working.pretend) as pool:
        pool.make(Planned(plan, kept), lambda run, record: None)
    document.write(document.document(plan, kept.of(plan)), tmp_path / "accuracy.json")
    found = document.read(tmp_path / "accuracy.json")
    blocks = show.page(found, "accuracy.json")
    grid = SECTIONS["clicks"].grid
    assert f"| adam(0.01) | 2 | {grid[4]:.4g} | 10.0 | 100 | 0.1990 | 80.10 ± 0.06 |" in " ".join(
        blocks[show.BEST]
    )
    assert any("**80.10**" in line for line in blocks[show.RATES])
    from benches.accuracy.picture import draw

    draw(document.summaries(found), tmp_path / "accuracy.svg")
    assert "adam(0.01)" in (tmp_path / "accuracy.svg").read_text()


def test_what_is_within_two_standard_errors_is_as_accurate():
    dense = result("dense AdamW", 60.9, 61.0, 61.1)
    near = result("adam(0.01)", 61.0, 61.1, 61.2)
    (line,) = tables.verdicts(summary(dense, near))
    assert "as accurate as dense AdamW, 0.10 ± 0.08 points above: holds" in line
    far = result("adam(0.01)", 61.2, 61.3, 61.4)
    (line,) = tables.verdicts(summary(dense, far))
    assert "0.30 ± 0.08 points ahead of dense AdamW: holds" in line


def test_rows_with_missing_runs_stay_out_of_the_documentation(tmp_path):
    plan = Plan(("clicks",))
    kept = Store(tmp_path)
    with Pool(1, target=working.pretend) as pool:
        pool.make(Planned(plan, kept), lambda run, record: None)
    records = kept.of(plan)
    del records[next(run for run in records if run.method == "adam_onebit()")]
    assert store.scores(records)
    found = document.document(plan, records)
    assert document.summaries(found)[0].missing == (("adam_onebit()", 2),)
    page = show.page(found, "x.json")
    lines = page[show.BEST] + page[show.RATES]
    assert any(line.startswith("| adam(0.01) |") for line in lines)
    assert not any(line.startswith("| adam_onebit() |") for line in lines)
    assert lines[0].endswith("; not finished: `adam_onebit()` (2 ranks)")
    without = {run: each for run, each in records.items() if not run.method.startswith("dense")}
    assert show.page(document.document(plan, without), "x.json")[show.RATES] == []


def test_a_return_counts_over_the_whole_run(tmp_path):
    section = SECTIONS["control"]
    points = [{"step": 1, "loss": 0.8, "return": 0.2}, {"step": 2, "loss": 0.0, "return": 1.0}]
    assert section.value(points) == pytest.approx(0.6)
    one = Result("dense AdamW", 2, 0.001, (60.0,), 0.0, 1e4, early=20.0, last=100.0)
    lines = tables.best(Summary(section, 640, 1, (), (one,), (one,)))
    assert "| early, % | at the end, % | return %, mean of the run |" in lines[0]
    assert "| 20.0 | 100.0 | 60.00 |" in lines[-1]
