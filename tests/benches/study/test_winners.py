"""From curves and times of steps to winners, losses and aims."""

from dataclasses import replace

import pytest

from benches.study import aims, curves, methods, reading, store
from benches.study.page import Findings
from benches.study.plan import LARGE, Cell
from benches.study.store import Store
from tests.benches.study.made import PLAN, keep_cells, outcome

SLOW, FAST = 100_000_000, None


@pytest.fixture
def findings(tmp_path) -> Findings:
    """All of the small study."""
    kept = Store(tmp_path / "study.jsonl")
    keep_cells(kept)
    while missing := curves.wanted(PLAN, curves.all_curves(kept, PLAN)):
        for run in missing:
            kept.keep(store.run_key(run), outcome(run))
    return Findings.of(PLAN, Store(kept.path))


@pytest.mark.parametrize(
    ("mark", "steps"),
    [(0.1, 100), (0.2, 100), (0.3, 150), (0.4, 200), (0.45, 300), (0.6, None)],
)
def test_steps_to_a_mark_lie_on_straight_lines_between_points(mark, steps):
    curve = [(100, 0.2), (200, 0.4), (300, 0.45)]
    assert reading.reached(curve, mark) == (None if steps is None else pytest.approx(steps))


def test_a_diverged_run_has_no_curve():
    point = {"step": 1, "auc": 0.5}
    records = [{"points": [point], "diverged": False}, {"points": [], "diverged": True}]
    assert reading.mean_curve(records, "auc") == []


def test_dense_methods_take_their_best_buckets(findings):
    fp32 = findings.found[Cell(LARGE, 2, SLOW)].results["fp32"].step
    assert (fp32.seconds, fp32.bucket) == (11.0, 25.0)
    assert fp32.low < fp32.seconds < fp32.high


def test_a_method_with_phases_takes_the_mean_of_their_steps(findings):
    both = [findings.found[Cell(name, 2, SLOW)] for name in ("clicks", LARGE)]
    timed = [each.results["adam(0.002), warm-up"].step.seconds for each in both]
    assert timed == pytest.approx([0.1 * 2.0 + 0.9 * 1.15, 1.15])  # the large model has no phases


def test_the_winner_is_the_fastest_to_the_mark(findings):
    found = findings.found[Cell("clicks", 2, SLOW)]
    assert found.winner.method == "adam(0.01)"
    assert found.gain(found.winner) > 1
    # The steps of adam(0.002) are shorter, but it never gets as far as dense training.
    missed = found.results["adam(0.002), warm-up"]
    assert missed.seconds is None
    assert found.gain(missed) == 0
    assert missed in found.losers()


def test_where_nothing_is_trained_a_method_that_misses_a_task_does_not_win(findings):
    found = findings.found[Cell(LARGE, 2, SLOW)]
    shortest = min(found.results.values(), key=lambda each: each.step.seconds)
    assert shortest.method == "adam(0.002), warm-up"
    assert found.winner.method == "adam(0.01)"


def test_a_dense_method_wins_where_nothing_is_faster(findings):
    for ranks in PLAN.ranks:
        found = findings.found[Cell(LARGE, ranks, FAST)]
        assert found.winner.method == "bf16"
        assert {each.method for each in found.losers()} == {
            name for name, each in found.results.items() if each.kind != "dense"
        }


def test_a_method_that_compresses_has_to_win_by_more_than_a_tie(findings):
    found = findings.found[Cell(LARGE, 2, FAST)]
    best = found.results["adam(0.01)"]

    def with_seconds(seconds: float) -> reading.Outcome:
        step = replace(best.step, seconds=seconds)
        results = {**found.results, "adam(0.01)": replace(best, step=step)}
        return reading.Outcome(found.cell, results, found.bound)

    assert with_seconds(0.99).winner.method == "bf16"
    assert with_seconds(0.97).winner.method == "adam(0.01)"


def test_ranks_that_are_not_trained_take_the_larger_steps_of_their_neighbours(findings):
    known = reading.Curves(PLAN, findings.made)
    both = [known.steps("clicks", "adam(0.01)", ranks)[1] for ranks in (2, 4)]
    assert known.steps("clicks", "adam(0.01)", 3) == (True, max(both))


def test_torch_power_sgd_has_the_curve_of_ours(findings):
    known = reading.Curves(PLAN, findings.made)
    ours = known.steps("clicks", methods.OUR_POWER, 4)
    assert ours == known.steps("clicks", methods.TORCH_POWER, 4)
    assert ours[0]


def test_a_cell_without_dense_curves_has_no_outcome(tmp_path):
    kept = Store(tmp_path / "study.jsonl")
    keep_cells(kept)
    found = Findings.of(PLAN, kept)
    assert {cell.section for cell in found.found} == {LARGE}
    assert "curves" in found.missing


def test_the_aim_of_step_rates_compares_with_both_dense_methods(findings):
    every = aims.rates(findings.found)
    assert [(each.value, each.met) for each in every[:2]] == [
        (pytest.approx(11 / 1.2), False),
        (pytest.approx(6 / 1.2), True),
    ]


def test_the_aim_of_no_exchange_counts_where_the_link_can_carry_what_is_sent(findings):
    found = findings.found[Cell(LARGE, 2, SLOW)]
    assert aims.carried(found, "adam(0.01)")
    assert not aims.carried(found, "fp32")
    every = aims.near(findings.found)
    assert len(every) == len(PLAN.links) * len(PLAN.ranks)
    assert not any(each.met for each in every)


def test_auto_is_among_the_methods():
    assert methods.has_auto()
    for section in ("clicks", LARGE, "fashion-sgd"):
        assert methods.AUTO in methods.compared(section)
        assert (methods.AUTO, methods.AUTO, None) in methods.contestants(section)
