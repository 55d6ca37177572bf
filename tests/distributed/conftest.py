"""Ranks shared by the tests of this folder."""

from collections.abc import Callable, Iterator

import pytest

pytest.importorskip("torch", reason="the distributed tests need the extra [torch]")

from tests.distributed.ranks import Nursery, Ranks

STAGED = (
    "test_errors",
    "test_exchanges",
    "test_optimizing",
    "test_parity",
    "test_saving",
    "test_scaling",
)
"""Files whose tests also run with copies of all buckets, as for tensors on other devices."""


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Run these files with both backends."""
    if metafunc.module.__name__.endswith(STAGED) and "backend" in metafunc.fixturenames:
        metafunc.parametrize("backend", ["cpu", "host"], indirect=True)


@pytest.fixture(scope="session")
def nursery() -> Iterator[Nursery]:
    """Where ranks come from."""
    nursery = Nursery()
    yield nursery
    nursery.stop()


@pytest.fixture(scope="session")
def kept(nursery: Nursery) -> Iterator[Callable[[int, str], Ranks]]:
    """Sets of ranks that serve all tests, by their number and backend."""
    sets: dict[tuple[int, str], Ranks] = {}

    def find(world_size: int, backend: str) -> Ranks:
        key = world_size, backend
        if key not in sets:
            sets[key] = Ranks(nursery, world_size, backend=backend)
        return sets[key]

    yield find
    for each in sets.values():
        each.stop()


@pytest.fixture
def backend(request: pytest.FixtureRequest) -> str:
    """What encodes tensors on the CPU."""
    return str(getattr(request, "param", "cpu"))


@pytest.fixture
def two(kept: Callable[[int, str], Ranks], backend: str) -> Ranks:
    """Two ranks that serve all tests."""
    return kept(2, backend)


@pytest.fixture
def three(kept: Callable[[int, str], Ranks], backend: str) -> Ranks:
    """Three ranks that serve all tests."""
    return kept(3, backend)


@pytest.fixture(params=["two", "three"])
def ranks(request: pytest.FixtureRequest) -> Ranks:
    """Two ranks, then three."""
    chosen: Ranks = request.getfixturevalue(request.param)
    return chosen


@pytest.fixture
def short_lived(nursery: Nursery) -> Iterator[Ranks]:
    """Two ranks for one test that ends badly, with a timeout short enough to wait for."""
    ranks = Ranks(nursery, 2, timeout=3.0)
    yield ranks
    ranks.stop()
