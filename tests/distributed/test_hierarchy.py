"""Four ranks as two nodes of two: dense inside a node, compressed between the nodes."""

from pathlib import Path
from typing import Any

import pytest

from tests.distributed.ranks import Ranks
from tests.distributed.scenarios.hierarchy import SHAPES

HEAD = 1024
"""Bytes of the message in which a rank tells its node how its share fared."""


def test_replicas_are_alike_and_as_with_plain_ddp(four: Ranks) -> None:
    results = four.run("hierarchy.against_plain")
    assert max(difference for each in results for difference in each["differences"]) < 1e-6
    for prints in zip(*(each["prints"] for each in results), strict=True):
        assert len(set(prints)) == 1
    first = results[0]["prints"]
    assert first[0] == first[1], "one buffer and two, by a mesh and by a number"
    assert len(set(first)) == len(first) - 1
    assert all(rest > 0 for each in results for rest in each["rest"])


def test_every_entry_is_exchanged_as_the_model_says(four: Ranks) -> None:
    for result in four.run("hierarchy.against_a_model"):
        assert result == {"gradients": True, "residuals": True, "names": ["a", "c", "turned"]}


def test_each_rank_sends_the_bytes_of_its_share_and_reports_them(four: Ranks) -> None:
    results = four.run("hierarchy.volume")
    shares = [0, 0]
    for name, shape in SHAPES.items():
        rows = shape[0] if shape else 1
        numel = rows * (shape[1] if len(shape) > 1 else 1)
        if name in ("turned", "scalar"):  # whole, and to the second rank
            shares[1] += numel
        else:
            shares[0] += numel // rows * -(-rows // 2)
            shares[1] += numel // rows * (rows // 2)
    room = 4 * max(shares)
    for rank, result in enumerate(results):
        steps = result["steps"]
        assert (steps, result["buckets"]) == (2, 2)
        assert result["inside"] == steps * (room + HEAD + room)
        assert result["inside"] == steps * result["node_wire_bytes"]
        assert result["between"] == steps * result["wire_bytes"]
        assert result["between"] < steps * shares[rank % 2] * 4 / 4
        assert "inside the node" in result["text"]


@pytest.mark.parametrize("exchange", [None, "AllReduce"], ids=["all-gather", "all-reduce"])
def test_an_infinity_on_one_rank_leaves_no_trace_on_any(four: Ranks, exchange: str | None) -> None:
    results = four.run("hierarchy.bad_gradients", exchange=exchange)
    assert all(each == results[0] for each in results)
    result: dict[str, Any] = results[0]
    assert result["error"] == ("c", 1, 1000, 3)  # in the second share: its place in the parameter
    assert (result["kept"], result["step"], result["discarded"]) == (True, 1, True)
    assert (result["scale"], result["steps"]) == (32.0, 4)


def test_resume_is_bit_for_bit_and_other_nodes_take_over(four: Ranks, tmp_path: Path) -> None:
    results = four.run("hierarchy.resume", folder=str(tmp_path))
    assert len({each["print"] for each in results}) == 1
    for result in results:
        assert result["equal"] == [True, True]
        before, *after = result["masses"]
        for each in after:
            assert each == pytest.approx(before, rel=1e-4, abs=1e-4)
        assert "every rank has its own residual" in result["refused"]


def test_what_is_no_hierarchy_is_refused_on_every_rank(four: Ranks) -> None:
    results = four.run("hierarchy.refusals")
    assert all(each == results[0] for each in results)
    said = [
        "ValueError: 4 ranks cannot be divided into nodes of 3",
        "TypeError: hierarchy= takes",
        "LOCAL_WORLD_SIZE",
        "of shape (4,)",
        "TypeError: hierarchy= takes",
        "with different hierarchy",
        "is sparse",
        "nothing",
    ]
    for text, expected in zip(results[0], said, strict=True):
        assert expected in text
