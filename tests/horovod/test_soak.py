"""Training with Horovod under random faults, restarts and changes of the number of ranks."""

from pathlib import Path
from typing import Any

import pytest

import gradwire
from tests.distributed.soak import soak
from tests.horovod.launcher import HorovodRanks, Launcher

pytestmark = pytest.mark.timeout(900)

SETTINGS: dict[str, dict[str, Any]] = {
    "topk": {"codec": gradwire.topk(ratio=0.05), "scaled": True, "groups": 3},
    "errors": {"codec": gradwire.sidco(ratio=0.05), "scaled": False, "groups": 1},
}
WITHOUT = {"topk": set(), "errors": {"loss scale"}}


def run(launcher: Launcher, folder: Path, name: str, steps: int, worlds: list[int]) -> None:
    print(f"Horovod, {name}: ", end="")
    soak(
        lambda world_size: HorovodRanks(launcher, world_size),
        folder,
        steps,
        worlds,
        trainer="tests.horovod.scenarios.soak",
        setting=SETTINGS[name],
        error=0.0,
        without=WITHOUT[name],
    )


@pytest.mark.full
def test_replicas_stay_equal_and_nothing_is_lost(launcher: Launcher, tmp_path: Path) -> None:
    run(launcher, tmp_path, "topk", 25, [3, 3, 2])


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("name", SETTINGS)
def test_so_it_is_over_two_thousand_steps(launcher: Launcher, tmp_path: Path, name: str) -> None:
    """Some minutes; run by ``make soak``."""
    worlds = [3] * 6 + [2] * 3 + [3] * 5 + [4] * 3 + [3] * 3
    run(launcher, tmp_path, name, 2000, worlds)
