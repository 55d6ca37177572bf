"""Second moments of averages and of each rank's own gradients: one becomes the other."""

import pytest

from tests.distributed.ranks import Ranks
from tests.distributed.scenarios.moments import COMMON


def test_second_moments_are_of_what_is_squared_there(ranks: Ranks) -> None:
    results = ranks.run("moments.there_and_back")
    for found in results:
        assert found["steps"] == {120.0}
        assert found["kept"] == 1  # the scalar, which is sent dense
        assert found["bits"] == results[0]["bits"]
        for name, common in COMMON.items():
            of_average = common**2 + 1.0 / ranks.world_size
            own = common**2 + 1.0
            assert found["dense"][name] == pytest.approx(of_average, rel=0.1)
            assert found["taken"][name] == pytest.approx(of_average, rel=0.35)
            assert found["corrected"][name] == pytest.approx(own, rel=0.35)
            assert found["saved"][name] == pytest.approx(of_average, rel=0.35)
            assert found["detached"][name] == pytest.approx(of_average, rel=0.35)
