"""What comes out is what plain DDP gives, less what is in the residuals, alike on every rank."""

from typing import Any

import numpy as np
import pytest

from tests.distributed.ranks import Nursery, Ranks

SMALL_BUCKETS = {"bucket_cap_mb": 0.01}

EVERYTHING = [("topk", {"ratio": 1.0}), ("dense", {})]


@pytest.mark.parametrize("codec", EVERYTHING, ids=["topk", "dense"])
def test_two_ranks_that_send_everything_equal_plain_ddp_bit_for_bit(
    two: Ranks, codec: tuple[str, dict[str, Any]]
) -> None:
    assert two.run("parity.against_plain", codec=codec) == [0.0, 0.0]


@pytest.mark.parametrize("codec", EVERYTHING, ids=["topk", "dense"])
def test_three_ranks_that_send_everything_equal_plain_ddp_to_rounding(
    three: Ranks, codec: tuple[str, dict[str, Any]]
) -> None:
    # A third is not exact: plain DDP divides before it adds up, this divides once, after it.
    assert max(three.run("parity.against_plain", codec=codec)) < 1e-6


@pytest.mark.parametrize("ddp", [{}, SMALL_BUCKETS], ids=["one-bucket", "several"])
@pytest.mark.parametrize(
    "codec",
    [("topk", {"ratio": 0.02}), ("sidco", {"ratio": 0.02}), ("threshold", {"threshold": 0.01})],
    ids=["topk", "sidco", "threshold"],
)
def test_replicas_are_bit_identical(
    ranks: Ranks, codec: tuple[str, dict[str, Any]], ddp: dict[str, Any]
) -> None:
    results = ranks.run("parity.replicas", codec=codec, ddp=ddp)
    assert len({fingerprint for fingerprint, _ in results}) == 1


MODES = {
    "one-bucket": {},
    "several-buckets": SMALL_BUCKETS,
    "bucket-view": {**SMALL_BUCKETS, "gradient_as_bucket_view": True},
    "static-graph": {**SMALL_BUCKETS, "static_graph": True},
    "find-unused": {**SMALL_BUCKETS, "find_unused_parameters": True},
    "batched-copy": {**SMALL_BUCKETS, "batched_grad_copy": True},
    "lazy-allocation": {**SMALL_BUCKETS, "lazy_bucket_allocation": True},
    "cap-list": {"bucket_cap_mb_list": [0.01, 0.02]},
}


@pytest.mark.parametrize(
    ("ddp", "options"),
    [*((each, {}) for each in MODES.values()), (SMALL_BUCKETS, {"min_ndim": 2})],
    ids=[*MODES, "by-dimensions"],
)
def test_nothing_is_lost_over_steps(
    two: Ranks, ddp: dict[str, Any], options: dict[str, Any]
) -> None:
    check_conservation(two.run("parity.conservation", ddp=ddp, options=options))


@pytest.mark.parametrize(
    ("codec", "trims"),
    [
        (("topk", {"ratio": 0.05, "quantize": "BFloat16"}), False),
        (("topk", {"ratio": 0.05, "quantize": "Float16"}), False),
        (("threshold", {"threshold": 12.0}), True),
        (("sidco", {"ratio": 0.05}), False),
    ],
    ids=["bfloat16", "float16", "trimmed", "sidco"],
)
def test_nothing_is_lost_to_rounding_or_to_full_slots(
    two: Ranks, codec: tuple[str, dict[str, Any]], trims: bool
) -> None:
    results = two.run("parity.conservation", ddp=SMALL_BUCKETS, options={}, codec=codec)
    check_conservation(results)
    if trims:
        assert sum(result["trimmed"] for result in results) > 0


def test_one_rank_alone(nursery: Nursery) -> None:
    single = Ranks(nursery, 1)
    assert single.run("parity.alone") == [(True, 0.0)]
    single.stop()


def test_nothing_is_lost_over_steps_with_three_ranks(three: Ranks) -> None:
    results = three.run("parity.conservation", ddp=SMALL_BUCKETS, options={})
    # Thirds are rounded, once for each entry and step.
    check_conservation(results, tolerance=1e-3)


def check_conservation(results: list[dict[str, Any]], tolerance: float = 0.0) -> None:
    for name in results[0]["given"]:
        given = sum(result["given"][name] for result in results)
        left = sum(result["left"].get(name, 0.0) for result in results)
        for result in results:
            np.testing.assert_allclose(
                result["applied"][name] + left, given, rtol=0, atol=tolerance, err_msg=name
            )
    compressed = results[0]["left"]
    assert "bias" not in compressed, "small tensors are to travel dense"
    assert any(np.any(residual) for residual in compressed.values()), "the test must leave a rest"


@pytest.mark.parametrize(
    ("mode", "rebuilt"), [("several-buckets", 1), ("bucket-view", 1), ("static-graph", 2)]
)
def test_buckets_are_rebuilt_while_residuals_go_on(two: Ranks, mode: str, rebuilt: int) -> None:
    for result in two.run("parity.conservation", ddp=MODES[mode], options={}):
        counts = result["collectives"]
        assert counts[:rebuilt] == [1] * rebuilt
        assert set(counts[rebuilt:]) == {counts[-1]}
        assert counts[-1] > 1


def test_a_bucket_is_one_collective(two: Ranks) -> None:
    for buckets, gathers, others in two.run("parity.one_collective_a_bucket"):
        assert buckets > 2
        assert (gathers, others) == (buckets, 0)


def test_ranks_round_by_chance_each_for_itself(two: Ranks) -> None:
    first, second = two.run("parity.rounding")
    assert first["average"] == second["average"]
    assert first["sent"] != second["sent"], "both ranks would be wrong in the same direction"
