"""The search for learning rates, and the table that it writes."""

import itertools
import json

import pytest
import torch

from benches.accuracy import rates
from benches.accuracy.rates import Candidate, Table, candidates, measure
from benches.accuracy.run import evaluate
from benches.accuracy.tasks.digits import Digits
from benches.harness import digits
from benches.harness.optimizers import recipe_for
from gradwire.presets import PRESETS
from tests.benches.accuracy.toy import Toy

DENSE = Candidate("text", "none", "none", None, recipe_for("adamw", None))
DIGITS = Candidate("digits", "none", "none", None, recipe_for("adamw", None))


def searched(loss, candidate=DENSE):
    """Return the rates that a search tries, in order, and the entry in the end."""
    known = {}
    while wanted := candidate.wanted(known):
        rate, seed = wanted[0]
        known.setdefault(rate, []).append(loss(rate, seed))
    return list(known), candidate.entry(known)


def test_a_search_ends_when_both_neighbours_of_the_best_rate_are_known():
    tried, entry = searched(lambda rate, seed: abs(rate - 0.002))
    assert tried == [0.002, 0.004, 0.001]
    assert entry["learning_rate"] == 0.002
    tried, entry = searched(lambda rate, seed: abs(rate - 0.016))
    assert tried == [0.002, 0.004, 0.008, 0.016, 0.032]
    assert entry["learning_rate"] == 0.016


def test_a_search_leaves_rates_that_diverge():
    tried, entry = searched(lambda rate, seed: None if rate > 0.0005 else -rate)
    assert tried == [0.002, 0.004, 0.001, 0.0005, 0.00025]
    assert entry["learning_rate"] == 0.0005
    assert entry["losses"]["0.004"] == [None]
    tried, entry = searched(lambda rate, seed: None)
    assert len(tried) == rates.MOST
    assert entry["learning_rate"] is None


def test_the_best_rate_is_the_best_with_a_second_seed_too():
    def other(rate, seed):
        return abs(rate - 0.004) if seed == 7 else 2 * abs(rate - 0.0005)

    tried, entry = searched(other, DIGITS)
    assert tried == [0.002, 0.004, 0.008, 0.001]
    assert entry["learning_rate"] == 0.002
    assert len(entry["losses"]["0.002"]) == len(entry["losses"]["0.004"]) == 2


def test_a_rate_that_diverges_with_a_second_seed_is_not_the_best():
    def diverging(rate, seed):
        return None if (rate, seed) == (0.004, 8) else abs(rate - 0.004)

    _, entry = searched(diverging, DIGITS)
    assert entry["losses"]["0.004"] == [0.0, None]
    assert entry["learning_rate"] == 0.002


def test_an_unfinished_search_gives_no_rate():
    assert DENSE.entry({0.002: [1.0], 0.004: [2.0]})["learning_rate"] is None
    assert DIGITS.entry({0.001: [3.0], 0.002: [1.0], 0.004: [2.0]})["learning_rate"] is None


def test_every_preset_is_searched_on_both_tasks():
    calls = {(each.task, each.call) for each in candidates()}
    for task, preset in itertools.product(("text", "digits"), PRESETS.values()):
        assert (task, preset.call) in calls
    assert len(calls) == len(list(candidates()))


def test_the_command_goes_on_where_it_was_interrupted(tmp_path, monkeypatch):
    few = [each for each in candidates() if each.name in ("none", "topk")][:2]
    made = []

    def loss(task, method, rate, seed):
        made.append((method.codec is None, rate))
        if len(made) == 5:
            raise KeyboardInterrupt
        return rate

    monkeypatch.setattr(rates, "candidates", lambda: few)
    monkeypatch.setattr(rates, "make_task", lambda name, data: None)
    monkeypatch.setattr(rates, "_loss", loss)
    path = tmp_path / "rates.json"
    with pytest.raises(KeyboardInterrupt):
        measure(path, ["text"])
    saved = json.loads(path.read_text())["tasks"]["text"]
    assert sum(len(each["losses"]) for each in saved) == 4
    monkeypatch.setattr(rates, "_loss", lambda task, method, rate, seed: abs(rate - 0.002))
    measure(path, ["text"])
    finished = json.loads(path.read_text())["tasks"]["text"]
    for before, after in zip(saved, finished, strict=True):
        for rate, made in before["losses"].items():
            assert after["losses"][rate][: len(made)] == made
        assert after["learning_rate"] is not None


def test_a_table_of_other_settings_is_not_continued(tmp_path, monkeypatch):
    path = tmp_path / "rates.json"
    Table(path).write([(DENSE, {0.002: [1.0]})])
    assert Table(path).losses(DENSE) == {0.002: [1.0]}
    monkeypatch.setitem(rates.SETTINGS, "steps", 301)
    assert Table(path).losses(DENSE) == {}


def test_losses_come_from_training(monkeypatch):
    monkeypatch.setitem(rates.SETTINGS, "steps", 40)
    for name in ("topk", "adam", "powersgd"):
        each = next(each for each in candidates() if each.name == name and each.task == "text")
        method = rates.Method(each.codec, each.recipe.kind, dict(each.recipe.options))
        slow, fast = (rates._loss(Toy(64), method, rate, 7) for rate in (1e-6, 0.01))
        assert fast < slow


def test_simulated_ranks_see_the_digits_of_the_demo():
    ours, demo = Digits(), digits.Digits()
    for rank in range(2):
        each = zip(ours.batches(rank, 2, 7), demo.batches(rank, 2, 7), strict=True)
        for a, b in itertools.islice(each, 30):
            assert torch.equal(a[0], b[0])
            assert torch.equal(a[1], b[1])
    assert evaluate(ours, ours.model(0))["loss"] == pytest.approx(2.3, abs=0.1)
