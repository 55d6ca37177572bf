"""Four ranks as two nodes of two: dense inside a node, compressed between the nodes."""

from pathlib import Path
from typing import Any

import numpy as np
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
    assert first[0] == first[1], "by a mesh and by a number"
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


def test_memory_is_marked_in_the_stream_that_has_used_it(four: Ranks) -> None:
    for found in four.run("hierarchy.marks"):
        assert len(found) > 4
        assert all(found)


def test_a_share_that_one_rank_has_no_memory_for_is_an_error_of_all(four: Ranks) -> None:
    results = four.run("hierarchy.no_memory")
    for found in results:
        assert len(found) == 6
        for where, (said, kept) in found.items():
            assert "MemoryError: no memory for a share" in said, where
            assert kept, where


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


def conserved(results: list[dict[str, Any]]) -> None:
    """What all ranks gave was applied, or is still to be sent by the nodes: exactly."""
    assert any(each.any() for each in results[0]["left"].values())
    for name in SHAPES:
        given = sum(result["given"][name] for result in results)
        assert np.any(given)
        for result in results:
            left = result["left"].get(name, 0.0)
            np.testing.assert_array_equal(result["applied"][name] + left, given, err_msg=name)


def test_accumulated_gradients_of_a_node_are_exchanged_once(four: Ranks) -> None:
    results = four.run("hierarchy_modes.accumulation")
    conserved(results)
    assert [each["step"] for each in results] == [2] * 4


def test_a_static_graph_is_exchanged_as_any_other(four: Ranks) -> None:
    results = four.run("hierarchy_modes.accumulation", static_graph=True)
    conserved(results)
    assert [each["step"] for each in results] == [6] * 4


def test_a_parameter_that_no_rank_uses_keeps_the_residuals_of_its_shares(four: Ranks) -> None:
    results = four.run("hierarchy_modes.unused")
    conserved(results)
    for each in results:
        assert each["none"] == [False, True, True, False, False]
        assert each["kept"] == [True, True, False]  # one rank that uses it is enough


def test_join_goes_on_until_the_last_rank_of_any_node_has_no_inputs(four: Ranks) -> None:
    results = four.run("hierarchy_modes.uneven")
    conserved(results)
    assert len({each["print"] for each in results}) == 1


def test_accordion_decides_by_the_norms_of_all_shares_of_the_first_node(four: Ranks) -> None:
    results = four.run("hierarchy_modes.measured")
    first = results[0]
    for rank, each in enumerate(results):
        assert each["norms"] == first["norms"]
        assert each["critical"] == first["critical"]
        assert each["holds"] == (["a", "c", "turned"] if rank < 2 else [])
    # The second half of `a` is three times as large in epoch 2: decided when that has ended.
    half, rest = 17 * 40, 16 * 40  # of two steps, each a mean of 1
    norms = [2 * (half + rest * factor**2) ** 0.5 for factor in (1.0, 1.0, 3.0, 3.0, 3.0)]
    assert [each["a"] for each in first["norms"][1:6]] == pytest.approx(norms, rel=1e-12)
    assert [each["turned"] for each in first["norms"][1:6]] == [2 * (31 * 50) ** 0.5] * 5
    critical = [each["a"] for each in first["critical"][:6]]
    assert critical == [True, True, False, True, False, False]
    assert [each["turned"] for each in first["critical"][2:6]] == [False] * 4
    # Saved within epoch 4, and ended by other nodes: the same norms.
    for norms_then in first["norms"][6:]:
        assert norms_then == pytest.approx(first["norms"][5], rel=1e-12)
    assert len(first["norms"]) == 9


def test_other_ranks_per_node_are_refused(four: Ranks) -> None:
    for found in four.run("hierarchy_modes.refused"):
        assert "regroup() cannot change the ranks per node" in found["regroup"]
        assert "gathered_state_dict()" in found["merged"]
        assert found["after"] == "2"
