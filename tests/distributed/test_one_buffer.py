"""A residual in one buffer trains as one in two does, with half the bytes, and no undo."""

from typing import Any

import pytest

from tests.distributed.ranks import Ranks
from tests.distributed.test_parity import check_conservation

ONE = {"kind": "residual", "low_memory": True}
ROUNDED = {**ONE, "dtype": "bfloat16"}
TOPK = ("topk", {"ratio": 0.05})
ADAM = ("adam", {"ratio": 0.05})
UNUSED = {"find_unused_parameters": True}
SEVERAL = {"bucket_cap_mb": 0.01}


def check_twins(two: Ranks, codec: Any, ddp: dict[str, Any], how: str) -> None:
    results = two.run("one_buffer.twins", codec=codec, ddp=ddp, how=how)
    for result in results:
        assert result["same"] == [True] * len(result["same"])
        assert result["print"] == results[0]["print"], "replicas stay equal"
        assert result["trained"]
        for before, after in zip(*result["bytes"], strict=True):
            assert after == before / 2


@pytest.mark.parametrize(
    ("codec", "how"),
    [
        (TOPK, ""),
        (TOPK, "no_sync"),
        (TOPK, "scaled"),
        (("sidco", {"ratio": 0.05}), ""),
        (("adacomp", {}), "scaled"),
        (("onebit", {}), "scaled"),
        (("topk", {"ratio": 0.05, "memory": {"kind": "residual", "dtype": "bfloat16"}}), ""),
        (("above", {}), ""),  # selected in Python
        (ADAM, ""),
        (ADAM, "held"),
        (ADAM, "scaled"),
    ],
    ids=str,
)
def test_one_buffer_trains_as_two_do(two: Ranks, codec: Any, how: str) -> None:
    check_twins(two, codec, {}, how)


@pytest.mark.parametrize(
    ("codec", "ddp", "how"),
    [
        (TOPK, {"gradient_as_bucket_view": True}, ""),
        (TOPK, {"static_graph": True}, ""),
        (TOPK, {"bucket_cap_mb": 25}, ""),
        (TOPK, UNUSED, "unused"),
        (TOPK, {**UNUSED, "gradient_as_bucket_view": True}, "unused"),
        (TOPK, {}, "accumulated"),
        (TOPK, {**UNUSED, "gradient_as_bucket_view": True}, "scaled"),
        (TOPK, {}, "epochs"),
        (ADAM, UNUSED, "unused"),
        (ADAM, {}, "join"),
    ],
    ids=str,
)
def test_one_buffer_trains_as_two_do_however_ddp_does(
    two: Ranks, codec: Any, ddp: dict[str, Any], how: str
) -> None:
    check_twins(two, codec, ddp, how)


def test_the_report_says_what_one_buffer_takes(two: Ranks) -> None:
    for found in two.run("one_buffer.bytes_of"):
        assert found == [4.0, 2.0]


def test_an_average_that_overflows_is_found_before_anything_changes(two: Ranks) -> None:
    for result in two.run("one_buffer.overflowing"):
        assert result["errors"][0] == "None"
        assert "'a' on rank 0" in result["errors"][1]
        assert [result[f"changed {step}"] for step in range(3)] == [True, False, True]
        assert [result[f"bad {step}"] for step in range(3)] == [False, True, False]
        assert result["sent late"] == 49984.0


def test_passes_that_are_paused_change_no_bit(two: Ranks) -> None:
    codec = ("topk", {"ratio": 0.05, "memory": ONE})
    results = two.run("discarding.without_a_trace", codec=codec, ddp={}, discards=False)
    for result in results:
        assert result["same"] == [True] * len(result["same"])
        assert result["prints"][0] == result["prints"][1] == results[0]["prints"][0]
        assert result["states_equal"]


def test_what_would_undo_a_pass_is_refused_and_changes_nothing(two: Ranks) -> None:
    results = two.run("one_buffer.undoing")
    for found in results:
        for name in ("discard", "state_dict", "epoch", "next pass"):
            assert found[name].startswith("UndoError: "), name
            assert "a residual has one buffer" in found[name]
            assert not found[name + " changed"]
        assert "has not applied the last pass yet" in found["state_dict"]
        assert "cleared before the optimizer's step()" in found["next pass"]
        assert found["counted"] == 0
        for name in ("after step", "the one after", "paused", "rolled back"):
            assert found[name] == "fine", name
        assert found["print"] == results[0]["print"]


def test_a_frame_damaged_on_its_way_changes_no_residual(short_lived: Ranks) -> None:
    for found in short_lived.run("one_buffer.damaged", how="flipped"):
        assert "checksum" in found["error"]
        assert found["whole"]
        assert found["saved"] is True
        assert found["infinite"]


def test_residuals_of_half_a_step_are_not_saved(short_lived: Ranks) -> None:
    first, second = short_lived.run("one_buffer.damaged", how="no room")
    assert "no room" in second["error"]
    assert "resume from an earlier checkpoint" in second["saved"]
    assert first["saved"] is True


def test_what_does_not_go_with_one_buffer_is_refused(two: Ranks) -> None:
    for found in two.run("one_buffer.refused"):
        assert "AllReduce() adds up values" in found["sum"]
        assert "LeaderIndices() adds up values" in found["leader"]
        assert "in Python encodes in a single call" in found["quantizer"]
        assert "hides where a step ends" in found["skipping"]
        for text in found.values():
            assert "low_memory=False" in text


def test_join_lets_finished_ranks_send_their_rest(two: Ranks) -> None:
    codec = ("topk", {"ratio": 0.05, "memory": ONE})
    results = two.run("modes.uneven_inputs", codec=codec)
    assert results[0]["flowed"]
    assert results[0]["fingerprint"] == results[1]["fingerprint"]
    check_conservation(results)
