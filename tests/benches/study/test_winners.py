"""From curves and times of steps to winners, losses and aims."""

from dataclasses import replace

import pytest

from benches.study import aims, curves, decisions, methods, page, reading, store, tables, times
from benches.study.page import Findings
from benches.study.plan import LARGE, Cell
from benches.study.reading import Verdict
from benches.study.store import Store
from gradwire.auto import BF16, FP32, Setting, describe
from tests.benches.study import made
from tests.benches.study.made import OWNED, PLAN, SAID, decide, keep_cells

SLOW, FAST = 100_000_000, None


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
    assert found.compare(missed) is Verdict.MISSED


def test_sizes_of_buckets_that_were_given_up_are_not_chosen():
    row = {"method": "fp32", "bucket": 5.0, "nbytes": 1.0, "dropped": False}
    rows = [
        {**row, "seconds": [3.0, 9.0]},
        {**row, "bucket": 25.0, "seconds": [4.0], "dropped": True},
    ]
    found = times.step_time(rows, LARGE, "fp32")
    assert (found.bucket, found.seconds, found.count) == (5.0, 6.0, 2)
    assert (found.low, found.high) == (3.0, 9.0)


def test_quartiles_are_taken_of_four_turns_or_more():
    row = {"method": "fp32", "bucket": 5.0, "nbytes": 1.0, "dropped": False}
    found = times.step_time([{**row, "seconds": [1.0, 2.0, 3.0, 4.0, 50.0]}], LARGE, "fp32")
    assert (found.low, found.seconds, found.high) == (2.0, 3.0, 4.0)


def test_where_nothing_is_trained_a_method_that_misses_a_task_does_not_win(findings):
    found = findings.found[Cell(LARGE, 2, SLOW)]
    shortest = min(found.results.values(), key=lambda each: each.step.seconds)
    assert shortest.method == "adam(0.002), warm-up"
    assert found.winner.method == "adam(0.01)"


def test_a_dense_method_wins_where_nothing_is_faster(findings):
    for ranks in PLAN.ranks:
        found = findings.found[Cell(LARGE, ranks, FAST)]
        assert found.winner.method == "bf16"
        every = [each for each in found.results.values() if each.kind != "dense"]
        assert all(found.compare(each) in (Verdict.SLOWER, Verdict.MISSED) for each in every)


def changed(found: reading.Outcome, seconds: float, spread: float, count: int = 3, **more):
    """Return an outcome in which `adam(0.01)` takes other times."""
    best = found.results["adam(0.01)"]
    low, high = (1 - spread) * seconds, (1 + spread) * seconds
    step = replace(best.step, seconds=seconds, low=low, high=high, count=count)
    results = {**found.results, "adam(0.01)": replace(best, step=step, **more)}
    return reading.Outcome(found.cell, results, replace(found.bound, low=0.5, seconds=0.6))


@pytest.mark.parametrize(
    ("seconds", "spread", "count", "verdict"),
    [
        (0.9, 0.01, 3, Verdict.FASTER),
        (0.99, 0.0, 3, Verdict.NOISE),  # a tie
        (0.9, 0.1, 3, Verdict.NOISE),  # bf16 has taken from 0.98 to 1.02
        (0.9, 0.0, 1, Verdict.NOISE),  # nobody knows its spread
        (0.4, 0.01, 3, Verdict.NOISE),  # faster than no exchange
        (1.03, 0.1, 3, Verdict.NOISE),
        (1.1, 0.01, 3, Verdict.SLOWER),
    ],
)
def test_a_difference_within_the_spread_of_turns_has_no_winner(
    findings, seconds, spread, count, verdict
):
    found = changed(findings.found[Cell(LARGE, 2, FAST)], seconds, spread, count)
    assert found.compressed.method == "adam(0.01)"
    assert found.verdict is verdict
    named = None if found.winner is None else found.winner.method
    wanted = {Verdict.NOISE: None, Verdict.FASTER: "adam(0.01)", Verdict.SLOWER: "bf16"}
    assert named == wanted[verdict]


def test_a_decision_that_is_not_settled_wins_nothing(findings):
    codec = Setting("codec", 0.02)
    settled = decisions.Decision(str(codec), True, (codec,))
    cell = Cell(LARGE, 2, SLOW)
    found = changed(findings.found[cell], 0.9, 0.0, decision=settled)
    assert found.verdict is Verdict.FASTER
    open_ = changed(findings.found[cell], 0.9, 0.0, decision=replace(settled, settled=False))
    assert open_.compare(open_.results["adam(0.01)"]) is Verdict.UNSETTLED
    assert open_.compressed.method == methods.AUTO


@pytest.mark.parametrize(
    "plan",
    [
        (FP32,),
        (BF16, BF16),
        (Setting("codec", 0.02),),
        (Setting("codec", 0.1), FP32),
        (Setting("codec"), BF16),
        (
            Setting("codec", 0.02, "owners"),
            Setting("codec", 0.02),
            Setting("codec", None, "owners"),
        ),
        (Setting("codec", 1e-05, "owners"), FP32, FP32),
    ],
)
def test_decisions_are_read_from_what_auto_says(plan):
    text = describe(plan)
    codecs = {each for each in plan if each.kind == "codec"}
    kept = f"It averages by {text}: a step takes 16 ms, while 20 ms was measured with bf16."
    read = decisions.Decision.of(kept)
    assert (read.text, read.settled, set(read.codecs)) == (text, True, codecs)
    tried = f"It tries {text}, which is predicted to take 3 ms per step where bf16 takes 4 ms."
    read = decisions.Decision.of(tried)
    assert (read.text, read.settled, set(read.codecs)) == (text, False, codecs)
    assert not decisions.Decision.of("It measures the first steps.").settled


def test_auto_is_judged_by_what_it_said_when_the_turns_began():
    codec = "It averages by the codec at ratio 0.02: a step takes 16 ms."
    again = "It measures fp32 once more, which took 20 ms per step where bf16 takes 4 ms."
    for settled in (True, False):
        row = {"settled": settled, "said_settled": codec if settled else again}
        for last in (codec, again):
            assert decisions.Decision.of(last, row).settled is settled
    row = {"settled": True, "said_settled": codec}
    assert decisions.Decision.of(again, row).text == "the codec at ratio 0.02"
    later = decisions.Decision.of("It averages by fp32: a step takes 9 ms.", row)
    assert later.text == "the codec at ratio 0.02; later fp32"


def test_what_was_decided_between_is_not_forgotten():
    codec = "It averages by the codec at ratio 0.02: a step takes 16 ms."
    between = "It averages by the codec at ratio 0.02 through owners: a step takes 12 ms."
    trial = "It tries the codec at ratio 0.05 through owners, which is predicted to take 3 ms."
    turns = decisions.decided([codec, between, trial, between, codec])
    row = {"settled": True, "said_settled": codec, "decided": turns}
    read = decisions.Decision.of(codec, row)
    assert read.text == "the codec at ratio 0.02; later the codec at ratio 0.02 through owners"
    assert read.codecs == (Setting("codec", 0.02), Setting("codec", 0.02, "owners"))
    del row["decided"]  # as in rows of before
    assert decisions.Decision.of(codec, row).codecs == (Setting("codec", 0.02),)


@pytest.mark.parametrize(
    ("codecs", "stand"),
    [
        ((), True),
        ((Setting("codec", 0.01), Setting("codec", 0.1)), True),
        ((Setting("codec", 0.01), Setting("codec", 0.01, "owners")), False),
        ((Setting("codec", 0.1), Setting("codec", 0.005)), False),
        ((Setting("codec"),), False),
    ],
)
def test_curves_stand_for_the_trained_ratio_and_larger_ones_without_owners(codecs, stand):
    assert all(
        methods.curves_stand_for(section, codecs) is stand
        for section in (LARGE, "clicks", "fashion-sgd")
    )


def test_a_decision_that_no_curve_was_trained_with_wins_nothing(findings):
    decide(findings.store, SAID)
    known = Findings.of(PLAN, findings.store).found
    slow = [cell for cell in PLAN.cells() if cell.link == SLOW]
    assert {known[cell].winner.method for cell in slow} == {methods.AUTO}

    decide(findings.store, OWNED, ranks=(3, 4))
    found = Findings.of(PLAN, findings.store).found
    for cell in slow:
        outcome = found[cell]
        auto = outcome.results[methods.AUTO]
        owned = cell.ranks > 2
        assert outcome.winner.method == ("adam(0.01)" if owned else methods.AUTO)
        assert (outcome.compare(auto) is Verdict.UNTRAINED) == owned
        # Steps were timed all the same; of training there is no time.
        assert (auto.seconds is None) == (owned and cell.section != LARGE)
    named = {(aim.text.split(":")[0], aim.text.split(": ")[1]) for aim in aims.near(found)}
    ours = [(f"{ranks} ranks, 100 Mbit/s", methods.AUTO) for ranks in PLAN.ranks]
    assert [each in named for each in ours] == [True, False, False]
    assert [methods.AUTO in aim.text for aim in aims.rates(found)] == [True] * 2 + [False] * 4


@pytest.mark.parametrize("section", [LARGE, "clicks"])
def test_a_dense_method_wins_where_only_an_untrained_decision_is_faster(findings, section):
    counted = []
    for said in (SAID, OWNED):
        decide(findings.store, said)
        cell = Cell(section, 3, SLOW)
        outcome = Findings.of(PLAN, findings.store).found[cell]
        alone = {
            name: each if each.kind in ("dense", "auto") else replace(each, steps=1e9)
            for name, each in outcome.results.items()
        }
        counted.append(tables.counts({cell: replace(outcome, results=alone)}))
    assert counted == [(1, 0, 0), (0, 1, 0)]


def test_ranks_that_are_not_trained_take_the_larger_steps_of_their_neighbours(findings):
    known = reading.Curves(PLAN, findings.made)
    both = [known.steps("clicks", "adam(0.01)", ranks)[1] for ranks in (2, 4)]
    assert known.steps("clicks", "adam(0.01)", 3) == (True, max(both))


def test_torch_power_sgd_has_the_curve_of_ours(findings):
    known = reading.Curves(PLAN, findings.made)
    ours = known.steps("clicks", methods.OUR_POWER, 4)
    assert ours == known.steps("clicks", methods.TORCH_POWER, 4)
    assert ours[0]


def test_a_cell_without_dense_curves_has_no_outcome(tmp_path, accuracy):
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


@pytest.fixture
def other_rate(tmp_path, monkeypatch):
    """A study in which dense training is best at half the rate that is best for the codec."""

    def accuracy():
        best, runs = made.accuracy()
        for record in runs:
            if record["key"]["method"] == "dense AdamW" and record["key"]["learning_rate"] == 0.008:
                record["points"][-1]["auc"] = 0.9
        return best | {("clicks", "dense AdamW", 2): 0.008}, runs

    monkeypatch.setattr(curves, "_accuracy", accuracy)
    kept = Store(tmp_path / "study.jsonl")
    keep_cells(kept)
    return kept


def test_auto_has_the_best_rate_of_dense_training_whatever_it_decides(other_rate):
    known = curves.all_curves(other_rate, PLAN)
    found = curves.unchanged(PLAN, known)
    assert {key: each.rates for key, each in found.items() if key[1] == "adam(0.01)"} == {
        ("clicks", "adam(0.01)", ranks): (0.008,) for ranks in (2, 4)
    }
    lacking = {(run.ranks, run.learning_rate) for run in curves.wanted(PLAN, known)
               if run.method == "adam(0.01)"}  # fmt: skip
    assert (4, 0.008) in lacking


def test_auto_does_not_reach_the_mark_where_the_codec_at_that_rate_does_not(other_rate):
    while missing := curves.wanted(PLAN, curves.all_curves(other_rate, PLAN)):
        for run in missing:
            other_rate.keep(store.run_key(run), made.outcome(run))
    findings = Findings.of(PLAN, other_rate)
    codec = findings.found[Cell("clicks", 2, SLOW)].results[methods.AUTO]
    assert (codec.like, codec.seconds) == ("adam(0.01)", None)
    text = "\n".join(page.table_lines(findings))
    assert "adam(0.01) at dense training's rate, which does not reach the mark |" in text
    assert "| 0.008 (1), dense training's |" in text
    # Nor does it win where nothing is trained, and it has the curve of what it decides.
    assert not findings.found[Cell(LARGE, 2, SLOW)].results[methods.AUTO].keeps
    decide(other_rate, "It averages by fp32: a step takes 1250 ms.")
    dense = Findings.of(PLAN, other_rate).found[Cell("clicks", 2, SLOW)].results[methods.AUTO]
    assert (dense.like, dense.seconds is None) == ("fp32", False)
