"""``gradwire info``: versions and devices, as text to paste into a report of a bug."""

import argparse
import importlib.metadata
import json
import os
import platform
import re
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np

import gradwire
from gradwire import _native

_PACKAGES = ("gradwire-cuda", "horovod", "lightning", "accelerate", "transformers")
_SHOWN = (
    *("GRADWIRE_SIMD", "GRADWIRE_NUM_THREADS", "GRADWIRE_CACHE"),
    *("GRADWIRE_CUDA_LIBRARY", "GRADWIRE_CUDA_TRIAL"),
)
"""Variables of ours that hold no secret; others, such as a token, are only said to be set."""
_OTHERS = ("OMP_NUM_THREADS", "CUDA_VISIBLE_DEVICES", "GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME")


def main(argv: Sequence[str]) -> int:
    """Print the facts, or for each missing one the reason; return 0."""
    options = make_parser().parse_args(argv)
    facts = {name: _found(ask) for name, ask in _FACTS.items()}
    if options.json:
        print(json.dumps(facts, indent=2))
    else:
        print("\n".join(f"{name:<15} {text}" for name, text in facts.items()))
    return 0


def make_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="gradwire info",
        description="Print versions, the CPU, threads, torch, the CUDA extension and environment "
        "variables for a bug report, without machine or user names.",
    )
    parser.add_argument("--json", action="store_true", help="print a JSON object")
    return parser


def _found(ask: Callable[[], str]) -> str:
    """Return a fact, or the error instead, in one line without names of this user and machine."""
    try:
        text = ask()
    except Exception as error:
        text = f"not known: {type(error).__name__}: {error}"
    user = os.path.expanduser("~")
    for home in {user, os.path.realpath(user)} - {"/", "~"}:
        text = re.sub(rf"{re.escape(home)}(?![^/\s:'\"])", "~", text)
    if len(host := platform.node()) > 3 and host != "localhost":
        text = re.sub(rf"(?<![\w-]){re.escape(host)}(?![\w-])", "(this host)", text)
    return " ".join(text.split())


def _cpu() -> str:
    model = platform.processor() or platform.machine()
    if (about := Path("/proc/cpuinfo")).is_file():
        named = re.search(r"^model name\s*:\s*(.+)$", about.read_text("utf-8", "replace"), re.M)
        model = named[1] if named else model
    usable = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return f"{model}; {os.cpu_count()} processors, of which this process may use {usable}"


def _environment() -> str:
    ours = sorted(name for name in os.environ if name.startswith("GRADWIRE_"))
    shown = [f"{name}={os.environ[name] if name in _SHOWN else '(set)'}" for name in ours]
    shown += [f"{name}={os.environ[name]}" for name in _OTHERS if name in os.environ]
    return "; ".join([*(shown or ["none is set"]), *_native.environment_complaints()])


def _packages() -> str:
    versions = []
    for name in _PACKAGES:
        try:
            versions.append(f"{name} {importlib.metadata.version(name)}")
        except importlib.metadata.PackageNotFoundError:
            versions.append(f"no {name}")
    return ", ".join(versions)


def _driver() -> str:
    version = Path("/proc/driver/nvidia/version")
    return version.read_text("utf-8").splitlines()[0] if version.is_file() else "none of NVIDIA"


def _torch() -> str:
    import torch

    hip = f", ROCm {torch.version.hip}" if torch.version.hip else ""
    cuda = f"CUDA {torch.version.cuda}" if torch.version.cuda else "built without CUDA"
    return f"{torch.__version__}, {cuda}{hip}; {torch.get_num_threads()} threads"


def _gpus() -> str:
    import torch

    kinds = [
        f"{torch.cuda.get_device_name(index)}, "
        f"capability {'.'.join(map(str, torch.cuda.get_device_capability(index)))}"
        for index in range(torch.cuda.device_count())
    ]
    counted = (f"{kinds.count(kind)} x {kind}" for kind in dict.fromkeys(kinds))
    return "; ".join(counted) or "torch sees none"


def _extension() -> str:
    status = gradwire.torch.cuda.status()
    return status.reason if status.library is None else f"{status.reason}: {status.library}"


def _backends() -> str:
    import torch

    devices = ["cpu", *(f"cuda:{index}" for index in range(torch.cuda.device_count()))]
    backends = {device: gradwire.torch.backend(device) for device in devices}
    return "; ".join(
        f"{name}: {backend.name} ({backend.reason})" for name, backend in backends.items()
    )


def _collectives() -> str:
    import torch

    if not torch.distributed.is_available():
        return "torch was built without torch.distributed"
    have = {
        "gloo": torch.distributed.is_gloo_available(),
        "nccl": torch.distributed.is_nccl_available(),
        "mpi": torch.distributed.is_mpi_available(),
    }
    return ", ".join(name if there else f"no {name}" for name, there in have.items())


_FACTS: dict[str, Callable[[], str]] = {
    "gradwire": lambda: gradwire.__version__,
    "python": lambda: f"{platform.python_version()} ({platform.python_implementation()})",
    "numpy": lambda: np.__version__,
    "platform": platform.platform,
    "cpu": _cpu,
    "simd": gradwire.simd_level,
    "threads": lambda: f"{gradwire.get_num_threads()} of gradwire",
    "environment": _environment,
    "packages": _packages,
    "gpu driver": _driver,
    "torch": _torch,
    "gpus": _gpus,
    "cuda extension": _extension,
    "backends": _backends,
    "collectives": _collectives,
}
