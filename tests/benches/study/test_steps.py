"""One small cell with real processes over a real shaped link."""

import time
from dataclasses import replace
from typing import Any

import pytest
import torch

import gradwire
from benches.accuracy.flat import Flat
from benches.study import curves, steps
from benches.study.decisions import Decision
from benches.study.estimates import settling_limit
from benches.study.half import Half
from benches.study.plan import LARGE, Cell
from benches.study.steps import PASSES, StudyRanks, done, measure, settle, too_large
from benches.study.store import Run, cell_key
from tests.benches.study.made import PLAN

LISTED = [
    ("no exchange", "no exchange", None),
    ("fp32, 1 MB", "fp32", 1.0),
    ("bf16, 25 MB", "bf16", 25.0),
    ("adam(0.01)", "adam(0.01)", None),
    ("auto", "auto", None),
]
SLOW = 20_000_000


@pytest.mark.full
@pytest.mark.timeout(600)
def test_a_cell_is_timed_over_a_shaped_link_and_real_ranks_train_as_simulated_ones():
    plan = replace(PLAN, turns=2, settling=60.0)
    options = {"rate": 0.016, "steps": 3, "seed": 0}
    with StudyRanks(2) as ranks:
        if ranks.why_not is not None:
            pytest.skip(f"no shaped link: {ranks.why_not}")
        began = time.monotonic()
        rows = measure(ranks, plan, Cell("clicks", 2, SLOW), lambda text: None, LISTED)
        took = time.monotonic() - began
        ranks.shape(None)
        whole = ranks.whole(section="clicks", method="adam(0.01)", bucket=None, **options)
    found = {row["method"]: row for row in rows}
    assert list(found) == [method for _, method, _ in LISTED]
    # Two ranks exchange half of the values twice, and no queue can hold that back for long.
    numel = 338_481
    assert found["fp32"]["nbytes"] == 4 * numel
    assert found["bf16"]["nbytes"] == 2 * numel
    assert 0 < found["adam(0.01)"]["nbytes"] < 0.1 * 2 * numel
    assert found["no exchange"]["nbytes"] == 0
    for method in ("fp32", "bf16"):
        least = 8 * found[method]["nbytes"] / SLOW
        assert min(found[method]["seconds"]) > 0.8 * least  # the link was shaped
    assert all(len(row["seconds"]) == len(row["processor_seconds"]) >= 1 for row in rows)
    # It began anew, and was timed when it had settled, or its time was over.
    automatic = found["auto"]
    assert automatic["settled"] == automatic["said_settled"].startswith("It averages")
    assert automatic["settled"] or automatic["settling_steps"] == PASSES or took > 60
    assert 8 <= automatic["settling_steps"] <= PASSES
    assert automatic["settling_seconds"] > 0
    kept = Decision.of(automatic["said"])
    assert not kept.settled or automatic["decided"][-1] == kept.text
    dropped = {row["contestant"]: row["dropped"] for row in rows}
    assert dropped["fp32, 1 MB"] is False  # the only size
    first, second = whole
    assert first["digest"] == second["digest"]
    assert first["seconds"] >= first["median"] > 0
    run = Run("clicks", "adam(0.01)", 2, 0.016, 0, 3)
    threads = torch.get_num_threads(), gradwire.get_num_threads()
    try:
        curve = curves.trained(run, None, {})  # on one thread
    finally:
        torch.set_num_threads(threads[0])
        gradwire.set_num_threads(threads[1])
    assert curve["points"][-1]["loss"] == first["loss"]


class Asked:
    """Ranks whose steps take so long, and whose ``auto`` says something after so many of them."""

    def __init__(self, seconds: float, decided_after: float) -> None:
        self.seconds, self.decided_after = seconds, decided_after
        self.counts: list[int] = []
        self.asked: list[str] = []

    def __call__(self, do: str, contestant: str, steps: int = 0) -> list[dict[str, Any]]:
        self.asked.append(do)
        if do == "anew":
            return [{}, {}]
        self.counts.append(steps)
        decided = sum(self.counts) >= self.decided_after
        said = "It averages by fp32: a step takes 5 ms." if decided else "It measures."
        return [{"seconds": each, "said": said} for each in (0.5 * self.seconds, self.seconds)]


class Turns:
    """Ranks that take no time, and whose ``auto`` says something else after every turn."""

    def __init__(self, said: list[str]) -> None:
        self.said = iter(said)

    def load(self, section: str, listed: Any) -> None: ...

    def shape(self, link: int | None) -> None: ...

    def ask(self, do: str, contestant: str, steps: int = 0) -> list[dict[str, Any]]:
        said = next(self.said) if contestant == "auto" and do in ("settle", "step") else ""
        facts = {"nbytes": 0.0, "said": said}
        return [facts if do == "facts" else {"seconds": 0.01, "cpu": 0.01, "said": said}] * 2


def test_a_row_of_auto_has_what_it_decided_in_any_turn():
    texts = [f"the codec at ratio {each}" for each in ("0.02", "0.02 through owners", "0.02")]
    said = [f"It averages by {each}: a step takes 10 ms." for each in texts]
    ranks: Any = Turns([said[0], *said])
    rows = measure(ranks, PLAN, Cell("clicks", 3, SLOW), lambda text: None, LISTED)
    found = {row["method"]: row for row in rows}
    assert found["auto"]["decided"] == texts[:2]
    assert found["auto"]["settled"]
    assert not any("decided" in found[name] for name in ("fp32", "adam(0.01)"))


@pytest.mark.parametrize(
    ("seconds", "counts"), [(5.0, [1] * 30), (1.0, [1, *[4] * 8]), (0.01, [1, 48])]
)
def test_auto_settles_in_few_turns_and_long_steps_are_taken_one_by_one(seconds, counts):
    asked = Asked(seconds, decided_after=30)
    found = settle(asked, "auto", 1000.0)
    assert asked.asked == ["anew", *["settle"] * len(counts)]
    assert asked.counts == counts
    assert found["settled"]
    assert found["said_settled"].startswith("It averages by fp32")
    assert found["settling_steps"] == sum(counts)
    assert found["settling_seconds"] == pytest.approx(sum(counts) * seconds)


def test_auto_that_does_not_settle_is_timed_all_the_same_and_its_row_says_so():
    never = Asked(0.01, decided_after=float("inf"))
    found = settle(never, "auto", 1000.0)
    assert (found["settled"], found["settling_steps"]) == (False, PASSES)
    assert settle(Asked(9.0, float("inf")), "auto", 0.0)["settling_steps"] == 1  # no time


def test_auto_has_time_for_dense_steps_on_a_slow_link():
    cells = [Cell(LARGE, 4, 50_000_000), Cell(LARGE, 2, None)]
    limits = [settling_limit(cell, PLAN) for cell in cells]
    step = 8 * 1.5 * 4 * 25_165_824 / 50_000_000
    assert limits[0] > 3 * step + 40
    assert limits[1] == PLAN.settling
    keys = [cell_key(cell, PLAN)["settling"] for cell in cells]
    assert keys == [pytest.approx(each, abs=0.1) for each in limits]


def test_where_steps_are_long_only_the_best_buckets_go_on():
    listed = [("a", "fp32", 5.0), ("b", "fp32", 25.0), ("c", "adam(0.01)", None)]
    seconds = {"a": [9.0], "b": [8.0], "c": [0.1]}
    assert done("a", "fp32", listed, seconds, 1)
    assert not done("b", "fp32", listed, seconds, 1)
    assert not done("c", "adam(0.01)", listed, seconds, 1)
    assert done("b", "fp32", listed, {**seconds, "b": [8.0, 8.0]}, 1)
    # What was given up stays so, however long the others' later turns are.
    assert done("a", "fp32", listed, {**seconds, "b": [8.0, 20.0]}, 1)
    assert not done("b", "fp32", listed, {"a": [9.0], "b": [8.0], "c": [0.1]}, 1)


def test_models_that_do_not_fit_into_memory_are_told(monkeypatch):
    monkeypatch.setattr(steps, "_available", lambda: 11e9)
    assert too_large(Cell(LARGE, 2, None)) is None
    assert too_large(Cell("clicks", 4, None)) is None
    why = too_large(Cell(LARGE, 4, None))
    assert why == "its models need 20 GB of memory, of which 11.0 GB are free"


def test_averages_in_bfloat16_are_rounded_as_the_hook_rounds_them():
    flat = Flat(torch.nn.Linear(64, 32))
    generator = torch.Generator().manual_seed(0)
    given = [torch.randn(flat.gradients.shape, generator=generator) for _ in range(3)]
    half = Half(flat, 3)
    for _ in range(2):  # nothing stays from the step before
        for rank, each in enumerate(given):
            half.take(rank, each)
        out = torch.empty_like(flat.gradients)
        half.average(out)
        wanted = given[0].bfloat16() / 3
        for each in given[1:]:
            wanted = wanted + each.bfloat16() / 3
        assert torch.equal(out, wanted.float())
