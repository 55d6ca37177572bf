"""What an encode takes of this process's memory, where the system tells.

Linux keeps the most that a process ever had resident, and forgets it on request. Pages that were
only reserved do not count, and large pieces go back to the system as soon as they are free, so
that differences are what the work really needed.
"""

from collections.abc import Callable
from pathlib import Path

STATUS = Path("/proc/self/status")
FORGET = Path("/proc/self/clear_refs")


def resident() -> int | None:
    """Return the bytes that this process has resident now, or None where nobody says."""
    return _read("VmRSS")


def extra(work: Callable[[], object]) -> int | None:
    """Return how many bytes more than before were resident at the worst moment of this work."""
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
