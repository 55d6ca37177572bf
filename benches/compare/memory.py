"""Measure the memory that an encode needs, if the system reports it.

Linux records the peak resident memory of a process, and resets it on request. Pages that were only
reserved do not count, and large allocations return to the system as soon as they are freed, so that
differences show what the work actually needed.
"""

from collections.abc import Callable
from pathlib import Path

STATUS = Path("/proc/self/status")
FORGET = Path("/proc/self/clear_refs")


def resident() -> int | None:
    """Return the resident memory of this process in bytes, or None if unknown."""
    return _read("VmRSS")


def extra(work: Callable[[], object]) -> int | None:
    """Return by how many bytes the resident memory rose at its peak during this work."""
    before = resident()
    if before is None:
        return None
    try:
        FORGET.write_text("5")
    except OSError:
        return None
    answer = work()
    peak = _read("VmHWM")
    del answer
    return None if peak is None else max(0, peak - before)


def _read(key: str) -> int | None:
    try:
        lines = STATUS.read_text().splitlines()
    except OSError:
        return None
    for line in lines:
        if line.startswith(f"{key}:"):
            return 1024 * int(line.split()[1])
    return None
