"""Ranks of `horovodrun`, shared by the tests of this folder; and why there are none, if so."""

import importlib.util
import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

pytest.importorskip("torch", reason="the tests of Horovod need the extra [torch]")

from tests.horovod.launcher import HorovodRanks, Launcher

RECORD = Path(sys.prefix, "gradwire-horovod.json")
"""What `scripts/build_horovod.py` says about this environment."""


def missing() -> str | None:
    """Return why Horovod is not installed, or None if it has to work."""
    if RECORD.exists():
        reason: str | None = json.loads(RECORD.read_text())["missing"]
        return None if reason is None else f"no Horovod: {reason}"
    if importlib.util.find_spec("horovod") is None:
        return "no Horovod: `make horovod` builds it"
    return None


collect_ignore = [] if missing() is None else ["test_elastic.py"]  # it imports Horovod


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skip the tests of this folder, and no others, where there is no Horovod."""
    reason = missing()
    if reason is None:
        return
    for item in items:
        if item.path.is_relative_to(Path(__file__).parent):
            item.add_marker(pytest.mark.skip(reason=reason))


@pytest.fixture(scope="session")
def launcher() -> Iterator[Launcher]:
    """Where ranks come from."""
    launcher = Launcher()
    yield launcher
    launcher.stop()


@pytest.fixture(scope="session")
def kept(launcher: Launcher) -> Callable[[int], HorovodRanks]:
    """Sets of ranks that serve all tests, by their number."""
    sets: dict[int, HorovodRanks] = {}
    return lambda world_size: sets.setdefault(world_size, HorovodRanks(launcher, world_size))


@pytest.fixture
def two(kept: Callable[[int], HorovodRanks]) -> HorovodRanks:
    """Two ranks that serve all tests."""
    return kept(2)


@pytest.fixture
def three(kept: Callable[[int], HorovodRanks]) -> HorovodRanks:
    """Three ranks that serve all tests."""
    return kept(3)


@pytest.fixture(params=["two", pytest.param("three", marks=pytest.mark.full)])
def ranks(request: pytest.FixtureRequest) -> HorovodRanks:
    """Two ranks, then three."""
    chosen: HorovodRanks = request.getfixturevalue(request.param)
    return chosen
