"""Record results, machine and versions: one JSON file per run."""

import datetime
import json
import os
import platform
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import torch

import gradwire

from .break_even import break_even
from .contestant import Contestant
from .laws import current_name
from .rounds import Outcome

FOLDER = Path(__file__).resolve().parent.parent / "results"


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


def versions() -> dict[str, str]:
    found = {name: version(name) for name in ("gradwire", "numpy", "torch", "zstandard")}
    return {"python": platform.python_version(), **found, "torch_build": torch.__version__}


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
        "versions": versions(),
        "settings": {kind.name: kind.setting for kind in kinds},
        "unit": (
            "seconds; *_copies in copies of the same tensor in the same round; bytes; held and "
            "extra: bytes kept between steps, and taken on top by an encode"
        ),
        "outcomes": [_with_links(outcome) for outcome in outcomes],
        "sections": sections,
    }
    return dict(_finite(whole))


def write(document: dict[str, Any], path: Path | None) -> Path:
    """Write the run, by default to ``benches/results`` with a name made from the time."""
    path = path or FOLDER / f"{datetime.datetime.now(datetime.UTC):%Y-%m-%dT%H%M%SZ}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(document) + "\n")
    return path


def read(path: Path) -> dict[str, Any]:
    """Read a run, including old ones without sections and with other names of distributions."""
    document = dict(json.loads(path.read_text()))
    document.setdefault("sections", {})
    for outcome in document["outcomes"]:
        outcome["case"]["law"] = current_name(outcome["case"]["law"])
    return document


def _with_links(outcome: Outcome) -> dict[str, Any]:
    return outcome.record() | {"break_even_bits_per_second": break_even(outcome)}


def _finite(value: Any) -> Any:
    """Replace infinities, which JSON lacks, by a word; round to what clocks can resolve."""
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_finite(item) for item in value]
    if isinstance(value, float | np.floating):
        return float(f"{value:.5g}") if np.isfinite(value) else "always"
    return value
