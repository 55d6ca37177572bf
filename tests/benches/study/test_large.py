"""The large model learns with the methods whose steps the study times."""

from pathlib import Path

import pytest
import torch

from benches.accuracy.store import Lines
from benches.compare import blocks
from benches.study import large, methods, models


def outcome(accuracy: float, *, diverged: bool = False) -> dict[str, object]:
    return {"points": [{"step": 1, "accuracy": accuracy}], "diverged": diverged, "seconds": 1.0}


@pytest.fixture
def asked(tmp_path: Path) -> large.Asked:
    return large.Asked(Lines(tmp_path / "runs.jsonl"))


def finish(asked: large.Asked, best: dict[str, float]) -> list[large.Run]:
    """Make all runs: the nearer a rate is to the best one of its method, the more accurate."""
    order = []
    while missing := asked.missing():
        run = missing[0]
        order.append(run)
        distance = abs(torch.tensor(run.learning_rate / best[run.method]).log2().item())
        asked.keep(run, outcome(0.9 - 0.01 * distance + 0.001 * run.seed))
    return order


def test_the_best_rate_is_looked_for_up_and_down_and_gets_all_seeds(asked: large.Asked) -> None:
    best = {methods.FP32: 1.25e-4, "adam(0.01)": 2e-3}
    order = finish(asked, best)
    rates = {
        name: {run.learning_rate for run in order if run.method == name} for name in large.STARTS
    }
    assert rates[methods.FP32] == {6.25e-5, 1.25e-4, 2.5e-4, 5e-4}
    assert rates["adam(0.01)"] == {5e-4, 1e-3, 2e-3, 4e-3}
    assert [run.seed for run in order].count(1) == len(best)
    assert len(order) == len(set(order))
    shown = list(large.table(large.made(asked.kept)))
    assert any("90.05 | +0.00" in line and "**0.000125 (2)**" in line for line in shown)
    assert any("90.05 | +0.00" in line and "**0.002 (2)**" in line for line in shown)


def test_finished_runs_are_found_again_unless_something_changed(
    asked: large.Asked, monkeypatch: pytest.MonkeyPatch
) -> None:
    finish(asked, dict.fromkeys(large.STARTS, 5e-4))
    again = Lines(asked.kept.path)
    assert not large.Asked(again).missing()
    with monkeypatch.context() as other:
        other.setattr(large, "versions", lambda: {"torch": "0"})
        assert not large.made(again)
        assert len(large.made(again, here=False)) == len(again.records)
    monkeypatch.setattr(large, "STEPS", large.STEPS + 1)
    assert len(large.Asked(again).missing()) == 2 * len(large.STARTS)
    assert not large.made(again, here=False)


def test_a_run_that_diverged_is_the_worst(asked: large.Asked) -> None:
    for method, rate in large.STARTS.items():
        asked.keep(large.Run(method, rate, 0), outcome(0.5))
        asked.keep(large.Run(method, 2 * rate, 0), outcome(0.9, diverged=True))
    wanted = {run.learning_rate for run in asked.missing()}
    assert wanted == {rate / 2 for rate in large.STARTS.values()}


def test_it_is_the_network_whose_steps_are_timed() -> None:
    task = object.__new__(large.LargeFashion)  # without its data
    model, timed = task.model(0), models.Large().model(0)
    assert [each.shape for each in model.parameters()] == [
        each.shape for each in timed.parameters()
    ]
    images = torch.randn(4, 1, 28, 28)
    logits = model(images)
    assert logits.shape == (4, 10)
    assert torch.equal(task.model(0)(images), logits)
    loss = task.loss(model, (images, torch.arange(4)))
    loss.backward()
    assert all(each.grad is not None and each.grad.any() for each in model.parameters())


def test_the_published_table_is_that_of_the_data() -> None:
    page = (blocks.ROOT / "docs" / "study.md").read_text("utf-8")
    kept = Lines(large.RESULTS)
    shown = blocks.find(page, large.BLOCK).strip().splitlines()
    assert shown == list(large.table(large.made(kept, here=False)))
    assert len(shown) == 2 + len(large.STARTS)
