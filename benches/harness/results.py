"""What was measured: records with everything that determines them, and where they were made."""

import json
import os
import platform
from collections.abc import Mapping
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

import gradwire
from benches.harness.pages import ROOT
from gradwire import _files

FOLDER = ROOT / "benches" / "results"

Record = dict[str, Any]


class Store:
    """A file of records, one JSON object a line, read once and then appended to.

    An interrupted write leaves an incomplete line, which is passed over. Nothing but the end of the
    file is ever written, so another process may read it at any time.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.records: list[Record] = []
        self._ended = True
        if path.exists():
            text = path.read_text("utf-8")
            self._ended = text.endswith("\n") or not text
            for line in text.splitlines():
                try:
                    self.records.append(json.loads(line))
                except ValueError:
                    continue

    def add(self, record: Record) -> None:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with self.path.open("a", encoding="utf-8") as file:
            file.write(f"{'' if self._ended else chr(10)}{json.dumps(record)}\n")
        self._ended = True
        self.records.append(record)


def write(document: Any, path: Path) -> None:
    """Write a run as JSON with a record a line, completely or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    _files.write(path, f"{text(document)}\n")


def text(value: Any) -> str:
    """Return JSON in which every record of a list has a line of its own."""
    if isinstance(value, list) and any(isinstance(each, dict) for each in value):
        return "[\n" + ",\n".join(map(json.dumps, value)) + "\n]"
    if isinstance(value, dict):
        parts = [f"{json.dumps(name)}: {text(each)}" for name, each in value.items()]
        if any("\n" in part for part in parts):  # a line break in a string is written as \\n
            return "{\n" + ",\n".join(parts) + "\n}"
    return json.dumps(value)


def read(path: Path) -> Any:
    return json.loads(path.read_text("utf-8"))


def relative(path: Path) -> str:
    """Return how a page names a file of this checkout."""
    return path.resolve().relative_to(ROOT).as_posix()


def versions(*packages: str) -> dict[str, str]:
    """Return the versions of Python and of packages, by default of those that ranks have."""
    packages = packages or ("gradwire", "numpy", "scikit-learn")
    return {"python": platform.python_version(), **{name: version(name) for name in packages}}


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


def circumstances() -> dict[str, Any]:
    import torch

    return {
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "machine": {**machine(), "simd": gradwire.simd_level()},
        "versions": {**versions(), "torch": torch.__version__},
    }


def where(found: Mapping[str, Any]) -> str:
    level = f", SIMD level {found['simd']}" if "simd" in found else ""
    return f"{found.get('processor', found.get('architecture'))}, {found['cores']} cores{level}"


def listed(found: Mapping[str, str]) -> str:
    return ", ".join(f"{name} {each}" for name, each in found.items())
