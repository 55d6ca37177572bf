"""Runs are kept as they finish, and made once."""

import json

import pytest

from benches.accuracy import store
from benches.accuracy.plan import Plan, Run
from benches.accuracy.pool import Pool, WorkerError
from benches.accuracy.store import Planned, Store
from tests.benches.accuracy import working

PLAN = Plan(("clicks",), quick=True)


class Interrupted(Exception):
    """Stands for Ctrl-C."""


def make(folder, plan=PLAN, after=None, jobs=1) -> list[Run]:
    """Make the runs of a plan, or so many of them; return those made."""
    made: list[Run] = []

    def tell(run, record):
        made.append(run)
        if len(made) == after:
            raise Interrupted

    with Pool(jobs, target=working.pretend) as pool:
        pool.make(Planned(plan, Store(folder)), tell)
    return made


def test_an_interrupted_plan_goes_on_where_it_was(tmp_path):
    with pytest.raises(Interrupted):
        make(tmp_path, after=3)
    assert len(Store(tmp_path).records) == 3
    rest = make(tmp_path)
    records = Store(tmp_path).of(PLAN)
    assert len(rest) == len(records) - 3
    assert PLAN.missing(store.scores(records)) == []
    assert make(tmp_path) == []


def test_published_runs_are_not_made_again(tmp_path):
    (tmp_path / "before").mkdir()
    make(tmp_path / "before")
    published = Store(tmp_path / "before").records
    kept = Store(tmp_path / "after", published)
    assert PLAN.missing(store.scores(kept.of(PLAN))) == []
    assert kept.records == []  # nothing is copied
    for record in published:
        record["key"]["edition"] = 0
    assert kept.of(PLAN) == {}


def test_two_processes_share_the_runs(tmp_path):
    made = make(tmp_path, jobs=2)
    assert len(made) == len(set(made)) == len(Store(tmp_path).of(PLAN))


def test_a_line_that_was_cut_off_costs_only_its_run(tmp_path):
    make(tmp_path)
    path = Store(tmp_path).path
    whole = path.read_bytes()
    path.write_bytes(whole[:-20])
    assert Store(tmp_path).path.read_bytes() == whole[:-20]  # another process may be writing it
    assert len(make(tmp_path)) == 1
    assert make(tmp_path) == []
    assert len(path.read_text().splitlines()) == len(whole.splitlines()) + 1


@pytest.mark.parametrize(
    "change",
    [
        {"versions": {"gradwire": "0"}},
        {"edition": 0},
        {"steps": 1},
        {"config": {"codec": None}},
    ],
)
def test_runs_with_other_settings_or_versions_are_made_again(tmp_path, change):
    make(tmp_path)
    kept = Store(tmp_path)
    for record in kept.records:
        record["key"] |= change
    kept.path.write_text("".join(json.dumps(record) + "\n" for record in kept.records))
    assert len(make(tmp_path)) == len(kept.records)


def test_the_runs_of_a_quick_plan_are_not_taken_for_whole_ones(tmp_path):
    make(tmp_path)
    assert Store(tmp_path).of(Plan(("clicks",))) == {}


def test_a_failure_in_a_process_is_told(tmp_path):
    with (
        pytest.raises(WorkerError, match="no luck"),
        Pool(1, target=working.fail) as pool,
    ):
        pool.make(Planned(PLAN, Store(tmp_path)), lambda run, record: None)


def test_the_end_of_a_process_is_told(tmp_path):
    with (
        pytest.raises(WorkerError, match="died"),
        Pool(1, target=working.die) as pool,
    ):
        pool.make(Planned(PLAN, Store(tmp_path)), lambda run, record: None)
