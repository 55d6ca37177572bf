"""Laws of both exchanges in which ranks own ranges: steps that fail, resumes, other owners."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.distributed.ranks import Ranks
from tests.distributed.test_quantized_all_reduce import EVERY
from tests.distributed.test_reduce_scatter import SCATTER, UNIFORM

Codec = tuple[str, dict[str, Any]]
SPARSE: Codec = ("topk", {"ratio": 0.05, **SCATTER})
both = pytest.mark.parametrize("codec", [SPARSE, EVERY["onebit"]], ids=["sparse", "quantized"])


@pytest.mark.parametrize(
    "codec",
    [("topk", {"ratio": 1.0, **SCATTER}), ("dense", {"exchange": "QuantizedAllReduce"})],
    ids=["sparse", "quantized"],
)
def test_all_entries_of_two_ranks_train_as_plain_ddp_bit_for_bit(two: Ranks, codec: Codec) -> None:
    assert two.run("parity.against_plain", codec=codec) == [0.0, 0.0]


@pytest.mark.parametrize("exchange", ["scattered", "quantized"])
def test_an_unused_parameter_keeps_its_residual(two: Ranks, exchange: str) -> None:
    for found in two.run("exchanges.zero_everywhere", exchange=exchange):
        assert found["kept"]
        assert found["flowed"] or exchange == "scattered"


@pytest.mark.parametrize("codec", [SPARSE, EVERY["qsgd-kept"]], ids=["sparse", "quantized"])
def test_a_step_that_does_not_count_leaves_no_trace_in_the_residuals_of_owners(
    ranks: Ranks, codec: Codec
) -> None:
    results = ranks.run("scattered.undone", codec=codec)
    for found in results:
        assert found["same"] == [False, True, True, True, False]
        assert found["error"] == ("b", 1, 3 * 30 + 2)
        assert found["sum"] == results[0]["sum"]
        assert (found["sum"][0], found["sum"][2]) == ("a", 5 * 40 + 7)
        assert found["step"] == 4


@both
@pytest.mark.parametrize("where", ["encode", "cut", "undo", "merge", "copy"])
def test_a_rank_that_fails_in_any_phase_is_an_error_of_all(
    two: Ranks, where: str, codec: Codec
) -> None:
    for found in two.run("scattered.fails", where=where, how="raises", codec=codec):
        did = "encode" if where in ("encode", "cut") else "merge what it owns"
        assert f"rank 1 could not {did}: MemoryError: no memory to {where}" in found["error"]
        assert "stopped after an earlier error" in found["later"]
        assert found["kept"]


@both
@pytest.mark.parametrize("where", ["cut", "merge"])
def test_a_rank_that_dies_in_any_phase_is_an_error_of_the_others(
    expendable: Ranks, where: str, codec: Codec
) -> None:
    (kind, found), other = expendable.try_run(
        "scattered.fails", where=where, how="dies", codec=codec
    )
    assert other[0] == "died"
    assert kind == "returned", found
    assert "another rank has stopped" in found["error"]
    assert found["kept"]


@pytest.mark.parametrize(
    "codec",
    [
        ("topk", {"ratio": 0.02, **SCATTER}),
        ("topk", {"ratio": 0.02, "quantize": UNIFORM, **SCATTER}),
        *(EVERY[kind] for kind in ("onebit", "qsgd", "qsgd-kept")),
    ],
    ids=["sparse", "uniform", "onebit", "qsgd", "qsgd-kept"],
)
def test_resume_is_bit_for_bit_whatever_buckets_it_begins_with(
    two: Ranks, tmp_path: Path, codec: Codec
) -> None:
    for result in two.run("saving.resume", codec=codec, folder=str(tmp_path)):
        assert result["parameters"]
        assert result["residuals"]
        assert result["steps"] == (9, 9)
        assert (result["left"] > 0) == (codec != EVERY["qsgd"])


@both
def test_nothing_is_lost_when_other_ranks_own_the_entries(
    two: Ranks, three: Ranks, tmp_path: Path, codec: Codec
) -> None:
    folder = str(tmp_path)
    old = two.run("scattered.save", folder=folder, codec=codec)
    new = three.run("scattered.load", folder=folder, old_size=2, codec=codec)
    for name in old[0]:
        before = sum(each[name].astype(np.float64) for each in old)
        assert before.any()
        given = sum(each["given"][name] for each in new)
        after = sum(each["after"][name].astype(np.float64) for each in new)
        for each in new:
            allowed = 1e-3 if codec == SPARSE else 5e-3
            np.testing.assert_allclose(each["applied"][name] + after, before + given, atol=allowed)


@both
def test_what_cannot_work_is_refused_by_name(four: Ranks, codec: Codec) -> None:
    for found in four.run("scattered.refusals", codec=codec):
        for text in found.values():
            assert f"gradwire.exchange.{codec[1]['exchange']}()" in text
        assert "all_reduce() gathers frames or sums values" in found["all_reduce"]
        assert "the ranks of a node divide it already" in found["hierarchy"]
