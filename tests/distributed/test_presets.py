"""Every preset trains in DDP: replicas stay equal, failures leave no trace, resuming is exact."""

import pytest

from gradwire.presets import PRESETS
from tests.distributed.ranks import Ranks


@pytest.mark.parametrize("name", PRESETS)
def test_every_preset_keeps_what_ddp_is_promised(two: Ranks, name: str) -> None:
    results = two.run("presets.every_promise", name=name)
    assert [result["told"] for result in results] == [("GradientError", 1)] * 2
    assert all(result["no_trace"] for result in results)
    assert len({result["whole"] for result in results}) == 1
    for result in results:
        assert result["resumed"] == result["whole"]
        assert result["sent"] > 0
