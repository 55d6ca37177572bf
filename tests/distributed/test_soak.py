"""Training under random faults, restarts and changes of the number of ranks. See `soak`."""

from pathlib import Path
from typing import Any

import pytest

import gradwire
from gradwire.quantize import Uniform
from tests.distributed.codecs import CODECS
from tests.distributed.ranks import Nursery, Ranks
from tests.distributed.soak import soak

ROUNDED = gradwire.topk(ratio=0.05, quantize=Uniform(norm="max"))
SETTINGS: dict[str, dict[str, Any]] = {
    "topk": {"codec": CODECS["default"], "scaled": True},
    "bfloat16": {"codec": CODECS["narrow"], "scaled": True},
    "errors": {"codec": gradwire.sidco(ratio=0.05), "scaled": False},
    "rounded": {"codec": ROUNDED, "scaled": True},
}
ERRORS = {"rounded": 2e-5, "bfloat16": 2.0**-8}
"""Sums of what is rounded are not exact; a residual in bfloat16 is off by 2**-8 of it a step."""
NOT_TAKEN = {"errors": {"loss scale"}}


def run(nursery: Nursery, folder: Path, name: str, steps: int, worlds: list[int]) -> None:
    print(f"DDP, {name}: ", end="")
    soak(
        lambda world_size: Ranks(nursery, world_size),
        folder,
        steps,
        worlds,
        trainer="tests.distributed.scenarios.soak_ddp",
        setting=SETTINGS[name],
        error=ERRORS.get(name, 0.0),
        without=NOT_TAKEN.get(name, set()),
    )


@pytest.mark.full
@pytest.mark.parametrize("name", SETTINGS)
def test_replicas_stay_equal_and_nothing_is_lost(
    nursery: Nursery, tmp_path: Path, name: str
) -> None:
    run(nursery, tmp_path, name, 25, [3, 3, 2, 3])


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("name", SETTINGS)
def test_so_it_is_over_two_thousand_steps(nursery: Nursery, tmp_path: Path, name: str) -> None:
    """Some minutes; run by ``make soak``."""
    worlds = [3] * 6 + [2] * 3 + [3] * 5 + [2] * 3 + [3] * 3
    run(nursery, tmp_path, name, 2000, worlds)
