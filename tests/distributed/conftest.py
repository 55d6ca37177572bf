"""Ranks shared by the tests of this folder."""

from collections.abc import Iterator

import pytest

pytest.importorskip("torch", reason="the distributed tests need the extra [torch]")

from tests.distributed.ranks import Nursery, Ranks


@pytest.fixture(scope="session")
def nursery() -> Iterator[Nursery]:
    """Where ranks come from."""
    nursery = Nursery()
    yield nursery
    nursery.stop()


@pytest.fixture(scope="session")
def two(nursery: Nursery) -> Iterator[Ranks]:
    """Two ranks that serve all tests."""
    ranks = Ranks(nursery, 2)
    yield ranks
    ranks.stop()


@pytest.fixture(scope="session")
def three(nursery: Nursery) -> Iterator[Ranks]:
    """Three ranks that serve all tests."""
    ranks = Ranks(nursery, 3)
    yield ranks
    ranks.stop()


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
