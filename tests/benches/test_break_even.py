"""The link speed at which two ways to exchange a gradient take equally long."""

import pytest

from benches.compare.break_even import RANKS, break_even
from benches.compare.peers import TorchHalf
from benches.compare.rounds import Case, Outcome, Result, Spread

NUMEL = 1_000_000
CASTS = 0.001


def outcome(encode: float, decode: float, nbytes: float) -> Outcome:
    """Return what a benchmark would give for one codec beside the bf16 casts."""
    codec = Result("codec", True, Spread([encode]), Spread([decode]), nbytes=Spread([nbytes]))
    casts = Result(TorchHalf.name, False, Spread([CASTS / 2]), Spread([CASTS / 2]))
    return Outcome(Case("laplace", NUMEL, 0.01, 1), Spread([0.001]), [codec, casts])


@pytest.mark.parametrize(("kind", "width", "casts"), [("fp32", 4, 0.0), ("bf16", 2, CASTS)])
def test_at_that_speed_both_ways_take_equally_long(kind, width, casts):
    link = break_even(outcome(0.01, 0.002, 50_000))["codec"][kind]
    dense = casts + 8 * width * NUMEL / link
    compressed = 0.01 + RANKS * 0.002 + 8 * 50_000 / link
    assert compressed == pytest.approx(dense)


def test_more_bytes_than_dense_never_pay():
    links = break_even(outcome(0.01, 0.002, 3 * NUMEL))["codec"]
    assert links["bf16"] is None
    assert links["fp32"] is not None


def test_what_costs_less_than_the_casts_always_pays():
    assert break_even(outcome(CASTS / 4, CASTS / 8, 50_000))["codec"]["bf16"] == float("inf")


def test_the_casts_are_no_codec():
    assert set(break_even(outcome(0.01, 0.002, 50_000))) == {"codec"}
