"""What is finished is kept, whenever the study is killed."""

import json
import subprocess
import sys
from dataclasses import replace

import pytest

from benches.accuracy.pool import Pool
from benches.compare.blocks import ROOT
from benches.study import curves, store
from benches.study.page import Findings
from benches.study.store import Store
from tests.benches.study.made import PLAN, keep_cells, outcome, pretend, rows

pytestmark = pytest.mark.usefixtures("accuracy")


def make(path, over=lambda: False) -> list[store.Run]:
    """Make the runs that are missing; return those made."""
    made: list[store.Run] = []
    with Pool(1, target=pretend) as pool:
        pool.make(curves.Asked(PLAN, Store(path), over), lambda run, record: made.append(run))
    return made


@pytest.mark.full
@pytest.mark.timeout(600)
def test_a_killed_study_goes_on_where_it_was(tmp_path):
    path = tmp_path / "study.jsonl"
    command = [sys.executable, "-m", "tests.benches.study.killed", str(path)]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout.readline() == "two\n"
        process.kill()
    before = Store(path).curves()
    assert len(before) == 2
    rest = make(path)
    assert rest
    assert not set(rest) & set(before)
    assert len(rest) + 2 == len(Store(path).curves())
    assert make(path) == []


def test_a_line_that_was_cut_off_costs_only_what_it_held(tmp_path):
    path = tmp_path / "study.jsonl"
    keep_cells(Store(path))
    whole = path.read_bytes()
    path.write_bytes(whole[:-20])
    there = Store(path).cells(PLAN)
    (lost,) = [each for each in PLAN.cells() if each not in there]
    kept = Store(path)
    kept.keep(store.cell_key(lost, PLAN), {"rows": []})
    assert len(Store(path).cells(PLAN)) == len(PLAN.cells())


def test_nothing_is_begun_once_the_time_is_over(tmp_path):
    assert make(tmp_path / "study.jsonl", over=lambda: True) == []


@pytest.mark.parametrize("change", [{"edition": 0}, {"turns": 9}, {"contestants": []}])
def test_cells_with_other_settings_are_timed_again(tmp_path, change):
    path = tmp_path / "study.jsonl"
    keep_cells(Store(path))
    records = [json.loads(line) for line in path.read_text().splitlines()]
    for record in records:
        record["key"] |= change
    path.write_text("".join(f"{json.dumps(record)}\n" for record in records))
    assert Store(path).cells(PLAN) == {}


def test_cells_of_the_former_edition_are_shown_and_timed_again(tmp_path):
    path = tmp_path / "study.jsonl"
    kept = Store(path)
    for cell in PLAN.cells():
        kept.keep(store.former_key(cell, PLAN), {"rows": rows(cell)})
    assert Store(path, store.circumstances()).cells(PLAN) == {}
    assert Store(path).cells(PLAN).keys() == set(PLAN.cells())
    assert "auto by an earlier procedure in 12 cells" in Findings.of(PLAN, Store(path)).note
    keep_cells(kept)
    assert "earlier" not in Findings.of(PLAN, Store(path)).note


def test_a_record_says_when_where_and_with_which_versions_it_was_made(tmp_path):
    keep_cells(Store(tmp_path / "study.jsonl"))
    for record in Store(tmp_path / "study.jsonl").records:
        assert record["date"].startswith("20")
        assert record["machine"]["cores"] >= 1
        assert {"gradwire", "torch", "python"} <= record["versions"].keys()


@pytest.mark.parametrize(
    ("part", "name", "value", "cells", "runs"),
    [
        ("machine", "simd", "none such", 0, 1),
        ("machine", "processor", "another", 0, 1),
        ("machine", "memory_bytes", 1, 12, 1),
        ("versions", "torch", "1.0", 0, 0),
    ],
)
def test_what_was_made_elsewhere_is_made_again(tmp_path, part, name, value, cells, runs):
    path = tmp_path / "study.jsonl"
    keep_cells(Store(path))
    run = curves.series(PLAN)[0].run(0.016, 0)
    Store(path).keep(store.run_key(run), outcome(run))
    here = store.circumstances()
    for saved in (Store(path), Store(path, here)):  # here, and for what only shows: all
        assert (len(saved.cells(PLAN)), len(saved.curves())) == (len(PLAN.cells()), 1)
    elsewhere = Store(path, {**here, part: {**here[part], name: value}})
    assert (len(elsewhere.cells(PLAN)), len(elsewhere.curves())) == (cells, runs)


def test_curves_of_make_accuracy_are_not_trained_again(tmp_path):
    plan = replace(PLAN, trained_ranks=(2,), seeds=3)
    made = curves.all_curves(Store(tmp_path / "none.jsonl"), plan)
    wanted = {run.method for run in curves.wanted(plan, made)}
    assert wanted == {"bf16", "powersgd(4)"}


@pytest.mark.full
def test_methods_without_known_rates_try_two_and_train_all_seeds_with_the_better(tmp_path):
    path = tmp_path / "study.jsonl"
    make(path)
    made = curves.all_curves(Store(path), PLAN)
    every = {(each.method, each.ranks): each for each in curves.series(PLAN)}
    assert every["adam(0.01)", 4].rates == (0.016, 0.032)
    assert curves.chosen_rate(every["adam(0.01)", 4], made) == 0.016
    more = curves.wanted(replace(PLAN, seeds=2), made)
    rates = {run.learning_rate for run in more if (run.method, run.ranks) == ("adam(0.01)", 4)}
    assert rates == {0.016}


@pytest.mark.parametrize("best", [0.004, 0.016, 0.064])
def test_rates_that_nobody_searched_are_searched_until_no_end_wins(best):
    plan = replace(PLAN, quick=False)
    made = {}
    while True:
        series = [each for each in curves.narrowed(plan, made) if each.method in curves.SEARCHED]
        runs = [each.run(rate, 0) for each in series for rate in each.rates]
        if all(run in made for run in runs):
            break
        for run in runs:
            end = 0.8 - abs(run.learning_rate - best)
            made[run] = {"diverged": False, "points": [{"auc": end}]}
    for each in series:
        assert curves.chosen_rate(each, made) == best
        if (each.method, each.ranks) == ("powersgd(4)", 4):
            assert each.rates == (best,)
        else:
            assert min(each.rates) < best < max(each.rates)
