"""Ranks shared by the tests of this folder."""

from collections.abc import Callable, Iterator

import pytest

pytest.importorskip("torch", reason="the distributed tests need the extra [torch]")

from tests.csrc.emulated.build import build
from tests.distributed.ranks import Nursery, Ranks

STAGED = (
    "test_conformance",
    "test_errors",
    "test_exchanges",
    "test_optimizing",
    "test_parity",
    "test_saving",
)
"""Files whose tests also run with copies of all buckets, as for tensors on other devices."""
CARRIED = (
    "test_conformance",
    "test_discarding",
    "test_errors",
    "test_exchanges",
    "test_hierarchy",
    "test_models",
    "test_modes",
    "test_owners",
    "test_saving",
    "test_schedules",
)
"""Files whose tests also run by emulated kernels, with frames that stay where tensors are."""
VALUES = ("test_hierarchy",)
"""Files whose tests also run without kernels, with values that stay where tensors are."""
LONG = (
    "test_codecs_that_send_steps_begin_with_a_warm_up",
    "test_a_loop_that_skips_large_norms_skips_one_step_as_dense_training_does",
    "test_epochs_that_nobody_tells_of_are_counted_by_steps",
    "test_without_a_memory_sums_are_right_on_average",
)
"""What these train is too much for emulated kernels, whose averages and states are those of the CPU
bit for bit: `test_devices` has that."""
DAILY = ("test_conformance", "test_parity", "test_saving")
"""Files whose tests run with `host` and `carried` in `make test-rest`, the others by night: their
laws hold for every exchange and its states, and `test_devices` compares the bytes."""
SHORT = 5.0
"""Seconds that are short enough to wait for, and long enough for a step on a busy machine."""


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Run these files with several backends."""
    if "backend" not in metafunc.fixturenames:
        return
    name = metafunc.module.__name__
    others = ["host"] if name.endswith(STAGED) else []
    if name.endswith(CARRIED) and metafunc.function.__name__ not in LONG:
        others.append("carried")
    if name.endswith(VALUES):
        others.append("values")
    if others:
        mark = pytest.mark.full if name.endswith(DAILY) else pytest.mark.night
        marked = [pytest.param(other, marks=mark) for other in others]
        metafunc.parametrize("backend", ["cpu", *marked], indirect=True)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark the tests that wait for a timeout."""
    for item in items:
        if isinstance(item, pytest.Function) and "short_lived" in item.fixturenames:
            item.add_marker(pytest.mark.waits)


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
            encodes = {"carried": "cuda", "values": "host"}.get(backend)
            if backend == "carried":
                build()  # before the ranks, which have no time for it
            transport = "gloo" if encodes is None else "carrier"
            sets[key] = Ranks(nursery, world_size, backend=encodes or backend, transport=transport)
        return sets[key]

    yield find
    for each in sets.values():
        each.stop()


@pytest.fixture
def backend(request: pytest.FixtureRequest) -> str:
    """What encodes tensors on the CPU."""
    return str(getattr(request, "param", "cpu"))


@pytest.fixture
def one(kept: Callable[[int, str], Ranks], backend: str) -> Ranks:
    """One rank that serves all tests."""
    return kept(1, backend)


@pytest.fixture
def two(kept: Callable[[int, str], Ranks], backend: str) -> Ranks:
    """Two ranks that serve all tests."""
    return kept(2, backend)


@pytest.fixture
def three(kept: Callable[[int, str], Ranks], backend: str) -> Ranks:
    """Three ranks that serve all tests."""
    return kept(3, backend)


@pytest.fixture
def four(kept: Callable[[int, str], Ranks], backend: str) -> Ranks:
    """Four ranks that serve all tests, as two nodes of two."""
    return kept(4, backend)


@pytest.fixture(params=["two", pytest.param("three", marks=pytest.mark.full)])
def ranks(request: pytest.FixtureRequest) -> Ranks:
    """Two ranks, then three."""
    chosen: Ranks = request.getfixturevalue(request.param)
    return chosen


@pytest.fixture
def short_lived(nursery: Nursery) -> Iterator[Ranks]:
    """Two ranks for one test that ends badly, with a timeout that it waits for."""
    ranks = Ranks(nursery, 2, timeout=SHORT)
    yield ranks
    ranks.stop()


@pytest.fixture
def expendable(nursery: Nursery) -> Iterator[Ranks]:
    """Two ranks for one test that ends badly, and waits for no timeout."""
    ranks = Ranks(nursery, 2)
    yield ranks
    ranks.stop()
