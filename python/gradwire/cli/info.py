"""``gradwire info``: versions and devices, as text to paste into a report of a bug."""

import argparse
import importlib.metadata
import importlib.util
import json
import os
import platform
import re
import shutil
import subprocess
import sys
import textwrap
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np

import gradwire
from gradwire import _native

_WIDTH = 80
_SECONDS = 120
"""The longest that another process is waited for: a first import of torch can take a minute."""

_LEVELS = {
    "scalar": "scalar",
    "neon": "scalar, neon",
    "avx2": "scalar, avx2",
    "avx512": "scalar, avx2, avx512",
}
"""The SIMD levels of a CPU, by its highest."""
_PACKAGES = ("gradwire-cuda", "horovod", "lightning", "accelerate", "transformers")
_SHOWN = (
    *("GRADWIRE_SIMD", "GRADWIRE_NUM_THREADS", "GRADWIRE_CACHE"),
    *("GRADWIRE_CUDA_LIBRARY", "GRADWIRE_CUDA_TRIAL"),
)
"""Variables of ours that hold no secret; others, such as a token, are only said to be set."""
_OTHERS = ("OMP_NUM_THREADS", "CUDA_VISIBLE_DEVICES", "GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME")

Facts = dict[str, Callable[[], str]]


def main(argv: Sequence[str]) -> int:
    """Print the facts, or for each missing one the reason; return 0."""
    options = make_parser().parse_args(argv)
    found = _found(_FACTS) | _of_torch()
    if options.json:
        print(json.dumps(found, indent=2))
    else:
        print("\n".join(_line(name, text) for name, text in found.items()))
    return 0


def make_parser() -> argparse.ArgumentParser:
    """Return the parser of the command line."""
    parser = argparse.ArgumentParser(
        prog="gradwire info",
        description="Print versions, the CPU, threads, torch, the CUDA extension and environment "
        "variables for a bug report, without machine or user names.",
    )
    parser.add_argument("--json", action="store_true", help="print a JSON object")
    return parser


def _found(facts: Facts) -> dict[str, str]:
    """Return each fact, or the error instead."""
    found = {}
    for name, ask in facts.items():
        try:
            found[name] = _plain(ask())
        except Exception as error:
            found[name] = _plain(f"not known: {type(error).__name__}: {error}")
    return found


def _plain(text: str) -> str:
    """Return a text in ASCII and one line, without names of this user and machine."""
    user = os.path.expanduser("~")
    for home in {user, os.path.realpath(user)} - {"/", "~"}:
        text = re.sub(rf"{re.escape(home)}(?![^/\s:'\"])", "~", text)
    if len(host := platform.node()) > 3 and host != "localhost":
        text = re.sub(rf"(?<![\w-]){re.escape(host)}(?![\w-])", "(this host)", text)
    return " ".join(text.encode("ascii", "backslashreplace").decode("ascii").split())


def _line(name: str, text: str) -> str:
    return textwrap.fill(
        f"{name:<15} {text}", _WIDTH, subsequent_indent=" " * 16, break_on_hyphens=False
    )


def _cpu() -> str:
    model = platform.processor() or platform.machine()
    if (about := Path("/proc/cpuinfo")).is_file():
        named = re.search(r"^model name\s*:\s*(.+)$", about.read_text("utf-8", "replace"), re.M)
        model = named[1] if named else model
    usable = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return f"{model}; {os.cpu_count()} processors, of which this process may use {usable}"


def _simd() -> str:
    used = highest = gradwire.simd_level()
    if os.environ.get("GRADWIRE_SIMD"):
        highest = _output("import gradwire; print(gradwire.simd_level())", GRADWIRE_SIMD="")
    return f"{used} in use; this CPU has {_LEVELS.get(highest.strip(), highest)}"


def _environment() -> str:
    ours = sorted(name for name in os.environ if name.startswith("GRADWIRE_"))
    shown = [f"{name}={os.environ[name] if name in _SHOWN else '(set)'}" for name in ours]
    shown += [f"{name}={os.environ[name]}" for name in _OTHERS if name in os.environ]
    return "; ".join([*(shown or ["none is set"]), *_native.environment_complaints()])


def _packages() -> str:
    found = []
    for name in _PACKAGES:
        try:
            found.append(f"{name} {importlib.metadata.version(name)}")
        except importlib.metadata.PackageNotFoundError:
            found.append(f"no {name}")
    return ", ".join(found)


def _driver() -> str:
    if (command := shutil.which("nvidia-smi")) is not None:
        asked = [command, "--query-gpu=name,driver_version", "--format=csv,noheader"]
        done = subprocess.run(asked, capture_output=True, text=True, timeout=_SECONDS, check=False)
        if done.returncode == 0:
            return "; ".join(done.stdout.splitlines())
        return f"nvidia-smi failed: {done.stdout}{done.stderr}"
    version = Path("/proc/driver/nvidia/version")
    return version.read_text("utf-8").splitlines()[0] if version.is_file() else "none of NVIDIA"


_FACTS: Facts = {
    "gradwire": lambda: gradwire.__version__,
    "python": lambda: f"{platform.python_version()} ({platform.python_implementation()})",
    "numpy": lambda: np.__version__,
    "platform": platform.platform,
    "cpu": _cpu,
    "simd": _simd,
    "threads": lambda: f"{gradwire.get_num_threads()} of gradwire",
    "environment": _environment,
    "packages": _packages,
    "gpu driver": _driver,
}


def _of_torch() -> dict[str, str]:
    """Return the facts about torch, from a separate process, which a broken torch can crash."""
    try:
        if importlib.util.find_spec("torch") is None:
            return {"torch": "not installed: pip install 'torch>=2.4'"}
        return dict(json.loads(_output("from gradwire.cli import info; info.print_torch()")))
    except Exception as error:
        return {"torch": _plain(f"not known: {type(error).__name__}: {error}")}


def _output(script: str, **environment: str) -> str:
    """Return the last line that another Python prints; raise a RuntimeError if it fails."""
    asked = [sys.executable, "-c", script]
    done = subprocess.run(
        asked,
        capture_output=True,
        text=True,
        errors="replace",
        timeout=_SECONDS,
        env=os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))} | environment,
        check=False,
    )
    lines = done.stdout.splitlines()
    if done.returncode == 0 and lines:
        return lines[-1]
    said = " ".join(done.stderr.splitlines()[-1:])
    raise RuntimeError(f"the process that was asked exited with code {done.returncode}; {said}")


def print_torch() -> None:
    """Print the facts about torch as JSON, in one line."""
    import torch

    def release() -> str:
        hip = f", ROCm {torch.version.hip}" if torch.version.hip else ""
        cuda = f"CUDA {torch.version.cuda}" if torch.version.cuda else "built without CUDA"
        return f"{torch.__version__}, {cuda}{hip}; {torch.get_num_threads()} threads"

    def gpus() -> str:
        count = torch.cuda.device_count()
        if not torch.cuda.is_available() or not count:
            return "torch sees none"
        kinds = [
            f"{torch.cuda.get_device_name(each)}, "
            f"capability {'.'.join(map(str, torch.cuda.get_device_capability(each)))}"
            for each in range(count)
        ]
        return "; ".join(f"{kinds.count(kind)} x {kind}" for kind in dict.fromkeys(kinds))

    def extension() -> str:
        found = gradwire.torch.cuda.status()
        return found.reason if found.library is None else f"{found.reason}: {found.library}"

    def backends() -> str:
        gpus = [f"cuda:{each}" for each in range(torch.cuda.device_count())] or ["cuda"]
        others = [each for each in ("xpu", "mps") if getattr(torch, each).is_available()]
        found = {device: gradwire.torch.backend(device) for device in ("cpu", *gpus, *others)}
        said = gradwire.torch.cuda.status().reason  # in a line of its own
        return "; ".join(
            f"{name}: {each.name} ({each.reason.replace(said, 'the extension is as above')})"
            for name, each in found.items()
        )

    def trial() -> str:
        if os.environ.get("GRADWIRE_CUDA_TRIAL") == "0":
            return "off, by GRADWIRE_CUDA_TRIAL=0: kernels are not compared with the core"
        return "on: kernels of a device are compared with the core at first use"

    def collectives() -> str:
        if not torch.distributed.is_available():
            return "torch was built without torch.distributed"
        have = {
            "gloo": torch.distributed.is_gloo_available(),
            "nccl": torch.distributed.is_nccl_available(),
            "mpi": torch.distributed.is_mpi_available(),
        }
        shown = ", ".join(name if there else f"no {name}" for name, there in have.items())
        if not have["nccl"]:
            return shown
        version = torch.cuda.nccl.version()  # type: ignore[no-untyped-call]
        return f"{shown}; NCCL {'.'.join(map(str, version))}"

    facts: Facts = {
        "torch": release,
        "gpus": gpus,
        "cuda extension": extension,
        "backends": backends,
        "cuda trial": trial,
        "collectives": collectives,
    }
    print(json.dumps(_found(facts)))
