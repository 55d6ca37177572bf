"""Describe the machine and the versions in use, for the record."""

import os
import platform
from pathlib import Path
from typing import Any


def cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def threads_per_rank(ranks: int) -> int:
    """Return a rank's share of the cores, at most 4: more threads would wait for each other."""
    return min(4, max(1, cores() // ranks))


def machine() -> dict[str, Any]:
    """Return the system, architecture, cores, processor and memory, without the host name."""
    facts: dict[str, Any] = {
        "system": platform.platform(),
        "architecture": platform.machine(),
        "cores": cores(),
    }
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
        facts["processor"] = next(
            line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")
        )
        facts["memory_bytes"] = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (OSError, StopIteration, ValueError):
        facts.setdefault("processor", platform.processor())
    return facts
