"""Training goes on with other ranks than it began with, without a restart."""

from collections.abc import Callable

import pytest

from tests.distributed.ranks import Nursery, Ranks

pytestmark = pytest.mark.waits  # for ranks that died


@pytest.fixture
def mortal(nursery: Nursery) -> Callable[[], Ranks]:
    return lambda: Ranks(nursery, 3, timeout=8.0)


@pytest.mark.parametrize("exchange", ["senders", "leader", "scattered", "default"])
def test_the_others_go_on_when_a_rank_dies(mortal: Callable[[], Ranks], exchange: str) -> None:
    ranks = mortal()
    try:
        outcomes = ranks.try_run("regrouping.a_rank_dies", exchange=exchange)
    finally:
        ranks.stop()
    (kind, first), (dead, _), (other, third) = outcomes
    assert (kind, dead, other) == ("returned", "died", "returned"), outcomes
    assert first["three"] == third["three"]
    for found in (first, third):
        assert "broken" in found["broken"]
        assert found["undone"]
        assert found["kept"]
        assert found["steps"] == 6
    assert first["left"] == (2, 0, 3, "None")
    assert third["left"] == (2, 1, 3, "None")
    assert first["two"] == third["two"]
    three, two = first["exchanges"]
    assert (three == two) == (exchange != "default")
    if exchange == "default":  # if three ranks were many
        assert (three, two) == (
            "gradwire.exchange.ReduceScatter()",
            "gradwire.exchange.AllGather()",
        )


def test_what_cannot_be_regrouped_goes_on_as_before(two: Ranks) -> None:
    results = two.run("regrouping.refusals")
    for found in results:
        assert "the model has ranks [0, 1]" in found["ranks"]
        assert found["fingerprint"] == results[0]["fingerprint"]
        assert found["again"] == results[0]["again"]
        assert found["step"] == 6
        assert "detached" in found["detached"]
