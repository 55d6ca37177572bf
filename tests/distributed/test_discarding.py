"""Gradients that a program throws away leave nothing in the residuals, if it says so."""

from typing import Any

import numpy as np
import pytest

from tests.distributed.ranks import Ranks
from tests.distributed.scenarios.common import integers


@pytest.mark.full
@pytest.mark.parametrize(
    ("codec", "ddp"),
    [
        ("senders", {}),
        ("senders", {"find_unused_parameters": True}),
        ("leader", {}),
        ("all_reduce", {"gradient_as_bucket_view": True}),
        (("dgc", {"ratio": 0.05}), {}),
        (("sidco", {"ratio": 0.05}), {"static_graph": True}),
        (("topk", {"ratio": 0.05, "memory": {"kind": "residual", "low_memory": True}}), {}),
    ],
    ids=["accordion", "find-unused", "leader", "all-reduce", "dgc", "sidco", "bfloat16"],
)
def test_passes_that_are_discarded_or_paused_change_no_bit(
    two: Ranks, codec: Any, ddp: dict[str, Any]
) -> None:
    results = two.run("discarding.without_a_trace", codec=codec, ddp=ddp)
    for result in results:
        assert all(result["same"])
        assert result["prints"][0] == result["prints"][1] == results[0]["prints"][0]
        assert result["states_equal"]


def test_a_loop_that_skips_large_norms_skips_one_step_as_dense_training_does(two: Ranks) -> None:
    ways = ("dense", "", "discard", "optimizer")
    found = {how: two.run("discarding.skipping", how=how) for how in ways}
    dense, neither, discard, seen = (results[0] for results in found.values())
    assert found["discard"][0] == found["discard"][1]
    assert discard == seen, "attach sees the optimizer, which makes no step"
    assert dense["skipped"] == discard["skipped"] == [20]
    assert len(neither["skipped"]) > 5, "what the bad batch left comes again and again"
    assert discard["loss"] < 1.1 * dense["loss"]


def test_discard_and_paused_where_there_is_nothing_to_do(two: Ranks) -> None:
    for found in two.run("discarding.edges"):
        for name in ("before the first", "twice", "after an epoch"):
            assert found[name].startswith("ValueError: there is no step to discard")
        for name in ("once", "skipped by the scaler", "paused"):
            assert found[name] == "fine"
        assert found["bad in a pause"], "as in plain DDP"
        mean = sum(integers(1, rank, 2)["c"].double().numpy() for rank in range(2)) / 2
        np.testing.assert_array_equal(found["mean"], mean)
        assert found["untouched"]
        assert found["steps"] == 1
        assert "is detached" in found["detached"]
        assert "is detached" in found["pause detached"]


@pytest.mark.full
@pytest.mark.parametrize("what", ["discard", "pause"])
def test_one_rank_alone_is_an_error_on_all(short_lived: Ranks, what: str) -> None:
    first, second = short_lived.run("discarding.alone", what=what)
    assert "another rank did not call " + what in first
    assert "was not exchanged" in second
