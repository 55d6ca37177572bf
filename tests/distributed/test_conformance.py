"""Laws that every exchange with frames or sums keeps: bad gradients leave no trace, and resumes."""

import math
from pathlib import Path
from typing import Any

import pytest

from tests.distributed.ranks import Ranks
from tests.distributed.test_exchanges import ALL, HALF, LEADER, LEADER_HALF, SEVERAL
from tests.distributed.test_parity import check_conservation

TOPK = {"ratio": 0.05}
ROUNDED = {"kind": "residual", "low_memory": True}
KEPT = {
    "gather": ("topk", TOPK),
    "bfloat16": ("topk", {**TOPK, "memory": ROUNDED}),
}
"""Codecs that gather frames, and keep residuals."""
EXACT = ("gather",)
UNUSED = {**SEVERAL, "find_unused_parameters": True}
VIEW = {**SEVERAL, "gradient_as_bucket_view": True}


@pytest.mark.parametrize(
    ("codec", "bad", "value", "ddp"),
    [
        # The first registered is in the last bucket; the bias travels dense.
        *((kind, "a", math.inf, SEVERAL) for kind in KEPT),
        *((kind, "c", math.nan, SEVERAL) for kind in KEPT),
        *((kind, "bias", math.inf, SEVERAL) for kind in KEPT),
        ("gather", "b", -math.inf, VIEW),
        ("gather", "a", math.inf, UNUSED),
        *((kind, "a", math.inf, SEVERAL) for kind in ALL),
        *((kind, "c", math.nan, SEVERAL) for kind in ALL),
        *((kind, "bias", -math.inf, SEVERAL) for kind in ALL),
    ],
)
def test_a_bad_gradient_on_one_rank_makes_every_rank_skip_and_roll_back(
    ranks: Ranks, codec: str, bad: str, value: float, ddp: dict[str, Any]
) -> None:
    results = ranks.run(
        "scaling.bad_step", bad=bad, value=value, ddp=ddp, codec=(KEPT | ALL)[codec]
    )
    last = ranks.world_size - 1
    for result in results:
        assert result["had_residuals"] or codec in ALL
        assert result["all_bad"]
        assert result["rolled_back"]
        assert result["skipped"]
        assert result["scale"] == 4.0
        assert f"{bad!r} on rank {last}" in result["error"]
        assert result["collectives"] > 5, "the test needs several buckets"
        assert result["fingerprint"] == results[0]["fingerprint"]
    if codec in EXACT:
        check_conservation(results, tolerance=0.0 if last == 1 else 1e-3)


@pytest.mark.parametrize("bad", ["a", "bias"], ids=["compressed", "dense"])
@pytest.mark.parametrize("codec", ["gather", "bfloat16", "leader", "reduce"])
def test_without_a_scaler_every_rank_raises_and_may_go_on(two: Ranks, codec: str, bad: str) -> None:
    results = two.run("scaling.without_scaler", bad=bad, codec=(KEPT | ALL)[codec])
    for result in results:
        assert result["step"] == 2
        assert f"the gradient of {bad!r} on rank 1 has 2 non-finite value(s)" in result["text"]
        assert result["typed"] == (bad, 1, 2, 3)
        assert result["rolled_back"]
    if codec not in ("bfloat16", "reduce"):
        check_conservation(results)


@pytest.mark.parametrize(
    "codec",
    [
        LEADER,
        LEADER_HALF,
        HALF,
        ("topk", {"ratio": 0.02, "memory": ROUNDED}),
        ("sidco", {"ratio": 0.02, "memory": ROUNDED}),
    ],
    ids=["leader", "leader-sidco", "reduce", "bfloat16", "bfloat16-sidco"],
)
def test_resume_is_bit_for_bit(two: Ranks, codec: tuple[str, Any], tmp_path: Path) -> None:
    for result in two.run("saving.resume", codec=codec, folder=str(tmp_path)):
        assert result["parameters"]
        assert result["residuals"]
        assert result["steps"] == (9, 9)
        assert result["left"] > 0
