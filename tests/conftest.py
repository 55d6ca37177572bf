"""Fixtures for all tests, their tiers, and how many examples hypothesis tries."""

import gc
import json
import os
import zlib
from collections import defaultdict
from collections.abc import Generator

import numpy as np
import pytest
import pytest_timeout
from hypothesis import HealthCheck, settings

from tests.deadlines import stretched

CASES = 3
"""Of the cases of one test, `make test` runs so many, chosen by a hash of their names."""

TIMES = os.environ.pop("GRADWIRE_TEST_TIMES", None)
"""The file for durations that scripts/run_tests.py names; not for a pytest that a test starts."""

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
        choices=("quick", "rest", "night"),
        help="run what `make test`, `make test-rest` or `make test-night` runs; all by default",
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
    cases = defaultdict(list)
    for item in items:
        if not any(item.get_closest_marker(name) for name in ("full", "night")):
            cases[item.nodeid.partition("[")[0]].append(item.nodeid)
    quick = {
        name
        for names in cases.values()
        for name in sorted(names, key=lambda name: zlib.crc32(name.encode()))[:CASES]
    }

    def tier_of(item: pytest.Item) -> str:
        if item.get_closest_marker("night") is not None:
            return "night"
        return "quick" if item.nodeid in quick else "rest"

    config.hook.pytest_deselected(items=[item for item in items if tier_of(item) != tier])
    items[:] = [item for item in items if tier_of(item) == tier]


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Append the duration of a phase of a test: its setup, its call or its teardown."""
    if TIMES is not None:
        line = {"test": report.nodeid, "phase": report.when, "seconds": round(report.duration, 3)}
        with open(TIMES, "a", encoding="utf-8") as file:
            file.write(json.dumps(line) + "\n")


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
