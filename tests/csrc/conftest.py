"""The CUDA kernels, compiled for the host: see README.md in this folder."""

from collections import Counter

import pytest

from tests.csrc.emulated.kernels import Kernels
from tests.csrc.emulated.operators import RACES, SANITIZED, emulate

SHARE = 11
"""Of the cases of a test, one in so many runs under the sanitizers, which take three times as long,
and with the race detector.

No list of parameters has a multiple of it, so that each parameter gets its turn.
"""


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if not (SANITIZED or RACES == "some"):
        return
    seen: Counter[str] = Counter()
    kept: list[pytest.Item] = []
    left: list[pytest.Item] = []
    for item in items:
        name = item.nodeid.partition("[")[0]
        (left if seen[name] % SHARE else kept).append(item)
        seen[name] += 1
    config.hook.pytest_deselected(items=left)
    items[:] = kept


@pytest.fixture(autouse=True)
def kernels() -> Kernels:
    """The kernels, in the same order of blocks and lanes for every test."""
    emulated = emulate()
    emulated.configure()
    return emulated
