"""Every preset trains in DDP: replicas stay equal, failures leave no trace, resuming is exact."""

from typing import Any

import pytest

from gradwire.presets import PRESETS
from tests.distributed.ranks import Ranks


@pytest.mark.parametrize("name", PRESETS)
def test_every_preset_keeps_what_ddp_is_promised(two: Ranks, name: str) -> None:
    check(two.run("presets.every_promise", name=name))


@pytest.mark.parametrize("name", ["values", "dense", "nested", "senders"])
def test_so_does_a_codec_with_parts_of_another_package(two: Ranks, name: str) -> None:
    check(two.run("presets.outside_parts", name=name))


def check(results: list[Any]) -> None:
    assert [result["told"] for result in results] == [("GradientError", 1)] * 2
    assert all(result["no_trace"] for result in results)
    assert len({result["whole"] for result in results}) == 1
    for result in results:
        assert result["resumed"] == result["whole"]
        assert result["sent"] > 0
