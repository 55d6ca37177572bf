"""What a run was made on, and where it is written."""

import hashlib
import os
import re
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch

import gradwire
from benches.harness import results
from gradwire.torch.cuda import status

from .measure import Setup


def facts(device: str) -> dict[str, Any]:
    return {
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "machine": _device(device) | {"cores": os.cpu_count()},
        "versions": results.versions("numpy", "torch") | {"gradwire": gradwire.__version__},
        "library": _library(),
    }


def document(setup: Setup) -> dict[str, Any]:
    """Return a run without results yet."""
    settings = {"numel": setup.numel, "rounds": setup.rounds}
    return {**facts(setup.device), **settings, "sections": {}, "failed": {}}


def default_path(document: dict[str, Any]) -> Path:
    """Return the file in ``benches/results`` that date and chip name."""
    chip = re.sub(r"[^a-z0-9]+", "-", document["machine"]["chip"].lower()).strip("-")
    return results.FOLDER / f"{document['date'][:10]}-{chip}.json"


def _device(device: str) -> dict[str, Any]:
    if device != "cuda":
        return {"chip": f"{device}, emulated", "driver": None, "cuda": torch.version.cuda}
    properties = torch.cuda.get_device_properties(0)
    return {
        "chip": properties.name,
        "capability": f"{properties.major}.{properties.minor}",
        "multiprocessors": properties.multi_processor_count,
        "memory": properties.total_memory,
        "driver": driver(),
        "cuda": torch.version.cuda,
    }


def driver() -> str | None:
    """Return the version of the driver, if the machine tells it."""
    version = Path("/proc/driver/nvidia/version")
    found = version.exists() and re.search(r"\s(\d+\.\d+[.\d]*)\s", version.read_text())
    return found[1] if found else None


def _library() -> dict[str, Any]:
    found = status()
    if found.library is None:
        return {"reason": found.reason}
    data = found.library.read_bytes()
    return {"reason": found.reason, "bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()}
