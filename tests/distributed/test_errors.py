"""A program may catch an error of `backward` and go on: DDP is whole, and replicas stay equal."""

from typing import Any

import pytest

from tests.distributed.ranks import Ranks

UNUSED = {"find_unused_parameters": True}


@pytest.mark.parametrize(
    ("ddp", "recompute", "compiled"),
    [
        ({}, False, False),
        (UNUSED, False, False),
        ({**UNUSED, "gradient_as_bucket_view": True}, False, False),
        ({"static_graph": True}, False, False),
        ({}, True, False),
        ({"static_graph": True}, True, False),
        ({}, False, True),
    ],
    ids=[
        "default",
        "find-unused",
        "find-unused-bucket-view",
        "static-graph",
        "reentrant",
        "reentrant-static-graph",
        "compiled",
    ],
)
def test_replicas_stay_equal_over_repeated_errors(
    two: Ranks, ddp: dict[str, Any], recompute: bool, compiled: bool
) -> None:
    results = two.run(
        "errors.caught_again_and_again",
        ddp=ddp,
        recompute=recompute,
        compiled=compiled,
    )
    for result in results:
        assert result["errors"] == [(1, 0), (4, 1), (7, 0), (10, 1)]
        assert len(set(result["prints"])) == 8, "it trains on"
        assert result == results[0]


@pytest.mark.full
@pytest.mark.parametrize("slow", [False, True], ids=["", "one-slow-rank"])
@pytest.mark.parametrize("exchange", ["leader", "all_reduce"])
def test_replicas_stay_equal_over_repeated_errors_in_sums(
    three: Ranks, exchange: str, slow: bool
) -> None:
    results = three.run("errors.caught_again_and_again", ddp=UNUSED, exchange=exchange, slow=slow)
    for result in results:
        assert result["errors"] == [(1, 0), (4, 1), (7, 2), (10, 0)]
        assert len(set(result["prints"])) == 8
        assert result["steps"] == 8, "only what counts is counted"
        assert result == results[0]


def test_an_error_in_one_of_two_models_leaves_both_whole(two: Ranks) -> None:
    first, second = two.run("errors.caught_in_two_models")
    assert first["errors"] == 2
    assert first == second


def test_under_join_only_ranks_with_inputs_raise_and_may_go_on(two: Ranks) -> None:
    first, second = two.run("errors.caught_under_join")
    assert first["errors"] == []
    assert second["errors"] == [(3, 1)]
    assert first["fingerprint"] == second["fingerprint"]


def test_after_a_failed_exchange_the_model_works_again_without_gradwire(two: Ranks) -> None:
    for found in two.run("errors.broken_and_whole_again"):
        assert found["errors"] == [(1, 1), (2, 1), (3, 1)]
        assert all(found["infinite"])
        assert found["as_plain"]


def test_the_error_that_is_kept_keeps_no_frames_of_the_program(two: Ranks) -> None:
    assert all(two.run("errors.traceback_holds_nothing"))
