"""What training ran on and with, for the record."""

import os
import platform
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any


def cores() -> int:
    """Return how many cores this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def threads_per_rank(ranks: int) -> int:
    """Return how many threads a rank computes with: its share of the cores, but no more than 4.

    The models are small; more threads would spend their time waiting for each other.
    """
    return min(4, max(1, cores() // ranks))


def versions() -> dict[str, str]:
    """Return the versions of Python and of what the figures depend on."""
    found = {"python": platform.python_version()}
    for package in ("gradwire", "numpy", "scikit-learn"):
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            found[package] = "not installed as a package"
    return found


def machine() -> dict[str, Any]:
    """Return what the machine is, without its name."""
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
