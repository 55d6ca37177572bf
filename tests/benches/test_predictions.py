"""What a benchmark of predictions makes of what it measured."""

import copy
import json
import re

import pytest

import gradwire
from benches.compare import blocks
from benches.plan.__main__ import link_of, predictions, quickest, table
from benches.plan.rank import CODECS, METHODS
from gradwire.cost import Calibration, CodecCost, Line

STEP = {
    "seconds": 0.12,
    "backward": 0.08,
    "ready": [0.04, 0.081],
    "buckets": [4_000_000, 4_000_000],
}


@pytest.fixture(scope="module")
def measured():
    """A measurement without noise: 2 ranks on links of 1 and 10 Gbit/s."""
    encode, decode = Line(1e-6, 1e-9, 0.0), Line(1e-6, 0.0, 1e-9)
    costs = {
        name: CodecCost(make(), encode, decode, 48, 32.0, 0.01, 8.0)
        for name, make in CODECS.items()
    }
    calibration = Calibration(costs, 1e-9, 1e-10, 1).to_json()
    outcomes = [
        {
            "rate": int(rate),
            "links": [{"bandwidth": rate, "latency": 1e-4, "overhead": 0.0}],
            "profiles": [STEP],
            "seconds": {method: [0.5, 0.4] for method in METHODS},
        }
        for rate in (1e9, 1e10)
    ]
    return {"date": "2026-11-22", "ranks": 2, "numel": 8_000_000, "tensors": 8,
            "calibrations": [calibration], "outcomes": outcomes}  # fmt: skip


def test_each_rate_and_method_is_predicted_and_judged_by_its_fastest_step(measured):
    rows = predictions(measured)
    assert [row["method"] for row in rows] == list(METHODS) * 2
    for row in rows:
        assert row["measured"] == 0.4
        assert row["error"] == pytest.approx(row["predicted"] / 0.4 - 1)
        assert row["predicted"] > row["compute"] == 0.12
    dense = rows[0]["predicted"]
    assert dense == pytest.approx(0.04 + 0.04 + 2 * (16e6 * 8 / 1e9 + 2e-4), rel=1e-6)


def test_the_table_has_a_row_for_each_method(measured):
    lines = table(measured)
    assert [line.split("|")[1].strip() for line in lines[4:]] == [*METHODS, "no exchange"]
    assert "1 Gbit/s: predicted | measured | error | 10 Gbit/s: predicted" in lines[2]


def test_the_table_in_the_documentation_is_that_of_its_run():
    page = (blocks.ROOT / "docs" / "cost.md").read_text("utf-8")
    named = re.search(r"benches/results/[\w-]+-plan\.json", page)
    assert named, "the page names the run that its table comes from"
    kept = json.loads((blocks.ROOT / named[0]).read_text("utf-8"))
    assert blocks.find(page, "predicted and measured").split("\n")[1:-1] == table(kept)


def test_what_is_slow_by_chance_is_left_out(measured):
    slow = copy.deepcopy(measured["calibrations"][0])
    slow["codecs"]["topk"]["encode"]["per_numel"] = 1.0
    both = quickest([slow, measured["calibrations"][0]])
    assert both.codecs["topk"].encode.per_numel == 1e-9
    assert both.codecs["topk"].codec == gradwire.topk(ratio=0.01)
    links = [{"bandwidth": rate, "latency": 1e-4, "overhead": 0.0} for rate in (3e8, 1e9, 5e8)]
    assert link_of({"links": links}).bandwidth == 5e8
