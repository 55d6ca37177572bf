"""Models that plain DDP takes are taken: complex, with sparse gradients, frozen in part."""

from typing import Any

import pytest

from gradwire.exchange import EXCHANGES
from tests.distributed.ranks import Ranks


@pytest.mark.parametrize("exchange", [each.kind for each in EXCHANGES])
@pytest.mark.parametrize(
    ("model", "told"),
    [("complex", "short, 1, 1, 65, 3"), ("sparse", "embedding.weight, 1, 1, 269, 3")],
    ids=["complex", "sparse"],
)
def test_trains_bit_for_bit_as_plain_ddp(two: Ranks, model: str, told: str, exchange: str) -> None:
    results = two.run("models.like_plain", model=model, exchange=exchange)
    for with_gradwire, plain, error in results:
        assert with_gradwire == plain == results[0][0]
        assert error == told  # name, rank, count and position of a gradient that is not finite


def test_sparse_and_dense_gradients_are_skipped_together(two: Ranks) -> None:
    results = two.run("models.sparse_with_scaler")
    for found in results:
        assert found["good"] == ([True, True], False)
        assert found["dense"] == ([False, False], True)
        assert found["sparse"] == ([False, False], True)
        assert found["later"] == ([True, True], False)
        assert found["print"] == results[0]["print"]


@pytest.mark.parametrize(
    "ddp", [{"find_unused_parameters": True}, {"static_graph": True}], ids=["unused", "static"]
)
def test_parameters_may_be_frozen_after_wrapping(two: Ranks, ddp: dict[str, Any]) -> None:
    results = two.run("models.unfreezing", ddp=ddp)
    for found in results:
        assert found["same"]
        assert found["kept"] == {"0.weight", "3.weight", "5.weight"}
        assert found["print"] == results[0]["print"]


def test_nothing_is_kept_for_what_was_frozen_when_it_was_wrapped(two: Ranks) -> None:
    assert two.run("models.frozen_before") == [{"3.weight", "5.weight"}] * 2


def test_a_weight_that_was_replaced_before_attaching_raises_no_error(two: Ranks) -> None:
    first, second = two.run("models.replaced")
    assert first.any()
    assert first.tobytes() == second.tobytes()
