"""Runs are kept as they finish, and made once."""

import json

import pytest

from benches.accuracy import pool, store
from benches.accuracy.methods import METHODS
from benches.accuracy.plan import Plan, Run
from benches.accuracy.store import Planned
from benches.harness.results import Store
from tests.benches.accuracy import working

pytestmark = pytest.mark.full  # trains

PLAN = Plan(("clicks",), quick=True)


def kept(folder, plan=PLAN, published=()) -> Planned:
    return Planned(plan, Store(folder / "runs.jsonl"), published)


class Interrupted(Exception):
    """Stands for Ctrl-C."""


@pytest.fixture(autouse=True)
def pretending(monkeypatch):
    """Processes pretend to train."""
    monkeypatch.setattr(pool, "train", working.pretend)


def make(folder, plan=PLAN, after=None, jobs=1) -> list[Run]:
    """Make the runs of a plan, or so many of them; return those made."""
    made: list[Run] = []

    def tell(run, record):
        made.append(run)
        if len(made) == after:
            raise Interrupted

    pool.make(kept(folder, plan), jobs, None, tell)
    return made


def test_an_interrupted_plan_goes_on_where_it_was(tmp_path):
    with pytest.raises(Interrupted):
        make(tmp_path, after=3)
    assert len(kept(tmp_path).records()) == 3
    rest = make(tmp_path, jobs=2)
    assert len(rest) == len(set(rest)) == len(kept(tmp_path).records()) - 3
    assert kept(tmp_path).missing() == make(tmp_path) == []


def test_published_runs_are_not_made_again(tmp_path):
    make(tmp_path / "whole")
    published = kept(tmp_path / "whole").store.records
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


@pytest.mark.parametrize(("act", "said"), [(working.fail, "no luck"), (working.die, "died")])
def test_a_failure_in_a_process_is_told(tmp_path, monkeypatch, act, said):
    monkeypatch.setattr(pool, "train", act)
    with pytest.raises(pool.WorkerError, match=said):
        make(tmp_path)
