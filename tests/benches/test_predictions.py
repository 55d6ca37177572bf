"""What a benchmark of predictions makes of what it measured."""

import copy

import pytest

pytest.importorskip("pandas", reason="the layer demo has pandas")

import gradwire
from benches.plan.predict import BY_GRADIENTS, link_of, method_of, middle, predictions
from benches.plan.rank import DENSE, METHODS, codec
from gradwire.cost import Calibration
from gradwire.cost.calibration import CodecCost, Line

WORKLOAD = {
    "numel": 8_000_000,
    "backward": 0.08,
    "other": 0.04,
    "buckets": [4_000_000, 4_000_000],
    "ready": [0.04, 0.08],
    "tensors": 8,
    "shared": True,
    "applying": 0.0,
}
SENT = 200_000.0
RATES = (0, 10**9)


@pytest.fixture(scope="module")
def measured():
    """A measurement without noise: 2 ranks on links of 1 and 10 Gbit/s."""
    encode, decode = Line(1e-6, 1e-9, 0.0), Line(1e-6, 0.0, 1e-9)
    costs = {
        name: CodecCost(codec(name), encode, decode, 48, 32.0, 0.01, 8.0)
        for name in METHODS
        if name not in DENSE
    }
    outcomes = [
        {
            "rate": rate,
            "links": [{"bandwidth": rate or 1e10, "latency": 1e-4}],
            "workloads": [{**WORKLOAD, "other": other} for other in (0.05, 0.04, 0.03)],
            "seconds": {method: [0.3, 0.4, 0.6] for method in METHODS},
        }
        for rate in RATES
    ]
    return {
        "date": "2026-11-22",
        "machine": {"cores": 2},
        "ranks": 2,
        "numel": 8_000_000,
        "tensors": 8,
        "rounds": 2,
        "calibration": Calibration(costs, 1e-9, 1e-10, 1).to_json(),
        "sent": dict.fromkeys(BY_GRADIENTS, SENT),
        "outcomes": outcomes,
    }


def test_each_rate_and_method_is_predicted_and_judged_by_its_middle_step(measured):
    rows = predictions(measured)
    assert [row["method"] for row in rows] == list(METHODS) * 2
    for row in rows:
        assert row["measured"] == 0.4
        assert row["error"] == pytest.approx(row["predicted"] / 0.4 - 1)
        assert row["predicted"] > row["compute"] == pytest.approx(0.12)
    dense = rows[len(METHODS)]["predicted"]
    assert dense == pytest.approx(0.04 + 0.04 + 2 * (16e6 * 8 / 1e9 + 2e-4), rel=1e-6)


@pytest.mark.parametrize("name", BY_GRADIENTS)
def test_what_sends_as_gradients_are_is_given_the_bytes_of_training(measured, name):
    method = method_of(name, measured)
    assert method.payload(8_000_000, 8).nbytes == pytest.approx(SENT, rel=1e-3)
    assert method_of("topk", measured).cost.share == 0.01


def test_what_is_slow_or_fast_by_chance_is_left_out(measured):
    slow, fast = (copy.deepcopy(measured["calibration"]) for _ in range(2))
    slow["codecs"]["topk"]["encode"]["per_numel"] = 1.0
    fast["codecs"]["topk"]["encode"]["per_numel"] = 1e-12
    found = middle([slow, measured["calibration"], fast])
    assert found.codecs["topk"].encode.per_numel == 1e-9
    assert found.codecs["topk"].codec == gradwire.topk(ratio=0.01)
    links = [{"bandwidth": rate, "latency": 1e-4, "overhead": 0.0} for rate in (3e8, 1e9, 5e8)]
    assert link_of({"links": links}, "topk").bandwidth == 5e8
    of = [
        {"of": [name], **each} for name, each in zip(("fp32", "topk", "fp32"), links, strict=True)
    ]
    assert link_of({"links": of}, "topk").bandwidth == 1e9
