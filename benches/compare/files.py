"""Recorded runs as files: JSON, in ``benches/results`` unless told otherwise."""

import json
import platform
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import torch

FOLDER = Path(__file__).resolve().parent.parent / "results"


def versions(*packages: str) -> dict[str, str]:
    """Return the versions of Python, of these packages, and of torch's build."""
    found = {name: version(name) for name in packages}
    return {"python": platform.python_version(), **found, "torch_build": torch.__version__}


def write(document: dict[str, Any], path: Path) -> Path:
    """Write a run."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(finite(document)) + "\n")
    return path


def read(path: Path) -> dict[str, Any]:
    """Read a run."""
    return dict(json.loads(path.read_text()))


def finite(value: Any) -> Any:
    """Replace infinities, which JSON lacks, by a word; round to what clocks can resolve."""
    if isinstance(value, dict):
        return {key: finite(item) for key, item in value.items()}
    if isinstance(value, list):
        return [finite(item) for item in value]
    if isinstance(value, float | np.floating):
        return float(f"{value:.5g}") if np.isfinite(value) else "always"
    return value
