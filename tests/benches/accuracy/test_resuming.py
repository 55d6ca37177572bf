"""Runs are kept as they finish, and made once."""

import json
import shutil

import pytest

from benches.accuracy import store
from benches.accuracy.methods import METHODS
from benches.accuracy.plan import AT_ONE_RATE, Plan, Run
from benches.accuracy.pool import Pool, WorkerError
from benches.accuracy.store import Planned
from benches.harness.results import Store
from tests.benches.accuracy import working

pytestmark = pytest.mark.full  # trains

PLAN = Plan(("clicks",), quick=True)


def kept(folder, plan=PLAN, published=()) -> Planned:
    return Planned(plan, Store(folder / "runs.jsonl"), published)


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
        pool.make(kept(folder, plan), tell)
    return made


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """Return a folder with all runs of the plan."""
    folder = tmp_path_factory.mktemp("whole")
    make(folder)
    return folder


def test_an_interrupted_plan_goes_on_where_it_was(tmp_path):
    with pytest.raises(Interrupted):
        make(tmp_path, after=3)
    assert len(kept(tmp_path).records()) == 3
    rest = make(tmp_path, jobs=2)
    assert len(rest) == len(set(rest)) == len(kept(tmp_path).records()) - 3
    assert kept(tmp_path).missing() == make(tmp_path) == []


def test_published_runs_are_not_made_again(whole, tmp_path):
    published = kept(whole).store.records
    after = kept(tmp_path, published=published)
    assert after.missing() == []
    assert after.store.records == []  # nothing is copied
    for record in published:
        record["key"]["edition"] = 0
    assert after.records() == {}


def test_what_was_published_was_made_by_the_methods_as_they_are_now():
    records = json.loads(store.PUBLISHED.read_text("utf-8"))["runs"]
    keys = [store.current(each["key"]) for each in records]
    found = [key for key in keys if key["method"] in METHODS]
    assert len(found) > 100
    for key in found:
        assert key["config"] == METHODS[key["method"]].config()


def test_a_line_that_was_cut_off_costs_only_its_run(whole, tmp_path):
    path, before = tmp_path / "runs.jsonl", (whole / "runs.jsonl").read_bytes()
    path.write_bytes(before[:-20])
    assert len(make(tmp_path)) == 1
    assert kept(tmp_path).missing() == []
    assert len(path.read_text().splitlines()) == len(before.splitlines()) + 1


@pytest.mark.parametrize(
    "change",
    [
        {"versions": {"gradwire": "0"}},
        {"edition": 0},
        {"steps": 1},
        {"config": {"codec": None}},
    ],
)
def test_runs_with_other_settings_or_versions_are_made_again(whole, tmp_path, change):
    shutil.copy(whole / "runs.jsonl", tmp_path)
    store = kept(tmp_path).store
    for record in store.records:
        record["key"] |= change
    store.path.write_text("".join(json.dumps(record) + "\n" for record in store.records))
    # Codecs for AdamW wait for the rate of uncompressed training.
    searched = [each for each in store.records if each["key"]["method"] not in AT_ONE_RATE]
    assert len(kept(tmp_path).missing()) == len(searched)


def test_a_failure_in_a_process_is_told(tmp_path):
    with (
        pytest.raises(WorkerError, match="no luck"),
        Pool(1, target=working.fail) as pool,
    ):
        pool.make(kept(tmp_path), lambda run, record: None)


def test_the_end_of_a_process_is_told(tmp_path):
    with (
        pytest.raises(WorkerError, match="died"),
        Pool(1, target=working.die) as pool,
    ):
        pool.make(kept(tmp_path), lambda run, record: None)
