"""Each rank clips its own gradients, which are larger than their average: see docs/ddp.md."""

import pytest

from tests.distributed.ranks import Ranks


def test_the_same_limit_clips_more_steps_and_an_adjusted_one_as_many(ranks: Ranks) -> None:
    for found in ranks.run("clipping.clipped"):
        print({name: round(value, 2) for name, value in found.items()})
        assert found["own"] > 1.5 * found["average"], "of each rank's own gradients"
        assert 1.1 < found["ratio"] < 3**0.5 + 0.1, "at most the root of the number of ranks"
        assert found["adjusted"] == pytest.approx(found["average"], abs=0.2)
