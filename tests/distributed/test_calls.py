"""A bucket is a call: the work of a step does not enter the compiled part for each parameter."""

from typing import Any

import pytest

from tests.distributed.ranks import Ranks

REDUCE = ("dense", {"memory": "Residual", "exchange": "AllReduce"})
DRAWN = ("randomk", {"ratio": 0.1, "exchange": "AllReduce"})
GATHER = {"encode_bucket": 1, "average_bucket": 1}
SUM = {"encode_bucket": 1, "read_bucket": 1}


@pytest.mark.parametrize(
    ("codec", "expected"),
    [
        (("topk", {"ratio": 0.05}), GATHER),
        (("qsgd", {"bits": 4}), GATHER),
        (None, GATHER),  # selected in Python, encoded together
        (REDUCE, SUM),
        (DRAWN, SUM),
    ],
    ids=["topk", "qsgd", "custom", "reduce", "drawn"],
)
def test_a_bucket_is_encoded_and_decoded_in_one_call(
    two: Ranks, codec: tuple[str, dict[str, Any]] | None, expected: dict[str, int]
) -> None:
    for found in two.run("calls.of_a_step", codec=codec):
        buckets = found["buckets"]
        assert buckets >= 3
        assert found["calls"] == {name: buckets * times for name, times in expected.items()}


@pytest.mark.parametrize("dtype", ["float32", "float64", "float16", "bfloat16"])
@pytest.mark.parametrize("scaled", [False, True])
def test_a_sparsifier_in_python_sends_what_the_same_one_of_the_core_does(
    two: Ranks, dtype: str, scaled: bool
) -> None:
    for found in two.run("calls.mixed", dtype=dtype, scaled=scaled):
        assert found["python"] == found["core"]
        assert any(any(map(any, _rows(values))) for values in found["core"].values())


def test_a_gradient_that_is_not_finite_is_named_and_leaves_no_trace(two: Ranks) -> None:
    for found in two.run("calls.failed"):
        assert found["told"] == ("b", 61)
        assert found["same"]


def _rows(values: Any) -> list[list[float]]:
    return [values] if values and not isinstance(values[0], list) else values


def test_the_buffers_of_the_first_slots_do_not_stay(two: Ranks) -> None:
    for nbytes, numel in two.run("calls.held"):
        assert nbytes[0] > 9 * numel  # nothing was seen yet: room for every entry
        assert nbytes[-1] < numel
