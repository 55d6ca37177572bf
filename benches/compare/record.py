"""Record results, machine and versions: one JSON file per run."""

import datetime
import os
import platform
from pathlib import Path
from typing import Any

import gradwire

from . import files
from .break_even import break_even
from .contestant import Contestant
from .laws import current_name
from .rounds import Outcome


def machine() -> dict[str, Any]:
    processor = platform.processor()
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.exists():
        lines = [line for line in cpuinfo.read_text().splitlines() if line.startswith("model name")]
        processor = lines[0].split(":", 1)[1].strip() if lines else processor
    return {
        "processor": processor,
        "cores": os.cpu_count(),
        "system": f"{platform.system()} {platform.machine()}",
        "simd": gradwire.simd_level(),
        "load_before": os.getloadavg()[0],
    }


def document(
    outcomes: list[Outcome],
    sections: dict[str, list[dict[str, Any]]],
    kinds: list[type[Contestant]],
    facts: dict[str, Any],
) -> dict[str, Any]:
    """Return the whole run as the content of the file."""
    whole = {
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "machine": facts,
        "versions": files.versions("gradwire", "numpy", "torch", "zstandard"),
        "settings": {kind.name: kind.setting for kind in kinds},
        "unit": (
            "seconds; *_copies in copies of the same tensor in the same round; bytes; held and "
            "extra: bytes kept between steps, and taken on top by an encode"
        ),
        "outcomes": [_with_links(outcome) for outcome in outcomes],
        "sections": sections,
    }
    return dict(files.finite(whole))


def write(document: dict[str, Any], path: Path | None) -> Path:
    """Write the run, by default with a name made from the time."""
    name = f"{datetime.datetime.now(datetime.UTC):%Y-%m-%dT%H%M%SZ}.json"
    return files.write(document, path or files.FOLDER / name)


def read(path: Path) -> dict[str, Any]:
    """Read a run, including old ones without sections and with other names of distributions."""
    document = files.read(path)
    document.setdefault("sections", {})
    for outcome in document["outcomes"]:
        outcome["case"]["law"] = current_name(outcome["case"]["law"])
    return document


def _with_links(outcome: Outcome) -> dict[str, Any]:
    return outcome.record() | {"break_even_bits_per_second": break_even(outcome)}
