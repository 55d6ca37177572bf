"""Fixtures for all tests, their tiers, and how many examples hypothesis tries."""

import gc
import os
import zlib
from collections import Counter
from collections.abc import Generator

import numpy as np
import pytest
import pytest_timeout
from hypothesis import HealthCheck, settings

from tests.deadlines import stretched

CASES = 12
"""Of the cases of one test, `make test` runs about so many, chosen by a hash of their names."""

settings.register_profile(
    "default",
    max_examples=100,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
    print_blob=True,
)
settings.register_profile("thorough", parent=settings.get_profile("default"), max_examples=5000)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "default"))


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--tier",
        choices=("quick", "rest"),
        help="run what `make test` runs, or what `make test-full` runs after it; both by default",
    )


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Collect no garbage among thousands of tests: not while they are made, nor later."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Choose the tests of a tier, before any are deselected for other reasons."""
    tier = config.getoption("--tier")
    if tier is None:
        return
    names = Counter(item.nodeid.partition("[")[0] for item in items)
    chosen: dict[bool, list[pytest.Item]] = {True: [], False: []}
    for item in items:
        cases = names[item.nodeid.partition("[")[0]]
        sampled = cases <= CASES or zlib.crc32(item.nodeid.encode()) % cases < CASES
        quick = sampled and item.get_closest_marker("full") is None
        chosen[quick is (tier == "quick")].append(item)
    config.hook.pytest_deselected(items=chosen[False])
    items[:] = chosen[True]


@pytest.hookimpl(tryfirst=True)
def pytest_timeout_set_timer(item: pytest.Item, settings: pytest_timeout.Settings) -> object:
    """Stretch the limit of every test on a machine that is busy."""
    limit = settings._replace(timeout=stretched(settings.timeout))
    return pytest_timeout.pytest_timeout_set_timer(item, limit)


@pytest.fixture
def rng() -> np.random.Generator:
    """A generator that gives every test the same numbers on every run."""
    return np.random.default_rng(20240917)


@pytest.fixture
def gradient(rng: np.random.Generator) -> np.ndarray:
    """10,000 values with tails heavier than a normal law's, as gradients have."""
    return (rng.standard_normal(10_000) * rng.gamma(0.5, size=10_000)).astype(np.float32)
