"""The ranks of the distributed tests, and limits: `scripts/gpu_visit.py` runs what is here.

A test that takes longer than ``GRADWIRE_TEST_LIMIT`` seconds ends the process, also one that waits
inside CUDA, where Python takes no signal. ``GRADWIRE_TEST_JOURNAL`` names a file with a line for
each test that has begun or ended; those in it are not run again.

Devices are not tried at first use: one that fails goes by the host, and no test would see its
kernels. And under compute-sanitizer, where one of so many cases runs, a trial takes long.
"""

import faulthandler
import json
import os
from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest

from tests.csrc.conftest import pytest_collection_modifyitems as take_share
from tests.distributed.conftest import backend, kept, nursery, two
from tests.gpu import place

os.environ["GRADWIRE_CUDA_TRIAL"] = "0"

__all__ = ["backend", "kept", "nursery", "two"]

LIMIT = float(os.environ.get("GRADWIRE_TEST_LIMIT", "300"))
JOURNAL = os.environ.get("GRADWIRE_TEST_JOURNAL", os.devnull)
LOST = 87
"""What the process exits with after a test that has left a device which answers no more."""
WORDS = 1500

# faulthandler writes to it when Python can do nothing any more.
_stacks = os.open(os.devnull if os.devnull == JOURNAL else f"{JOURNAL}.stacks", os.O_WRONLY)
_failed: dict[str, str] = {}
_skipped: set[str] = set()


def _note(**entry: Any) -> None:
    with Path(JOURNAL).open("a") as file:
        file.write(json.dumps(entry) + "\n")


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Take a share under the sanitizers, and leave what has run before."""
    take_share(config, items)
    notes = map(json.loads, Path(JOURNAL).read_text().splitlines())
    done = {note["test"] for note in notes if "test" in note}
    items[:] = [item for item in items if item.nodeid not in done]


def pytest_collection_finish(session: pytest.Session) -> None:
    """Say once how many tests there are."""
    if not Path(JOURNAL).read_text():
        _note(collected=len(session.items))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    """Give the test its time, and say what came of it."""
    _note(begun=item.nodeid)
    faulthandler.dump_traceback_later(LIMIT, exit=True, file=_stacks)
    try:
        result = yield
        words = _failed.get(item.nodeid)
        lost = place.lost() if words else None
    finally:
        faulthandler.cancel_dump_traceback_later()
    outcome = "failed" if words else "skipped" if item.nodeid in _skipped else "passed"
    seconds = round(_seconds.pop(item.nodeid, 0.0), 2)
    _note(test=item.nodeid, outcome=outcome, seconds=seconds, words=words)
    if lost:  # and every later test of this process would fail
        _note(lost=lost)
        print(f"\n{words}\n{item.nodeid} has left a device that is lost: {lost}", flush=True)
        os._exit(LOST)
    return result


_seconds: dict[str, float] = {}


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    _seconds[report.nodeid] = _seconds.get(report.nodeid, 0.0) + report.duration
    if report.failed:
        _failed.setdefault(report.nodeid, str(report.longrepr)[-WORDS:])
    elif report.skipped:
        _skipped.add(report.nodeid)
