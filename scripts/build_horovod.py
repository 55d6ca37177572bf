"""Build Horovod against the environment's torch, Gloo only, and install it there for the tests.

    .venv/bin/python scripts/build_horovod.py [--optional | --tests]

Horovod's last release is a source distribution that today's torch and compilers refuse. It is
fetched from the package registry by version and hash, changed by the edits below, and built into a
wheel, which stays under ``.cache/horovod``. A second call does nothing.

Where that fails, the reason is said in one line and recorded in the environment, and the tests of
Horovod skip with it. The exit status is then 1; with ``--optional``, 0 where this machine cannot
build it, for one of the reasons of `obstacle`; with ``--tests``, 0 whatever the reason, and a
build that has failed is not tried again.
"""

from __future__ import annotations

import argparse
import hashlib
import importlib.metadata
import json
import os
import platform
import re
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
CACHE = ROOT / ".cache" / "horovod"
RECORD = Path(sys.prefix) / "gradwire-horovod.json"

VERSION = "0.28.1"
SHA256 = "92a43f5a94c43907a56805bad15f19700c62ffc83b7ca483f9e104e229f67ef0"

# File, text that must be there once, and its replacement.
EDITS = (
    # torch's headers are C++20.
    ("CMakeLists.txt", "set(CMAKE_CXX_STANDARD 14)", "set(CMAKE_CXX_STANDARD 20)"),
    ("horovod/torch/CMakeLists.txt", "set(CMAKE_CXX_STANDARD 14)", "set(CMAKE_CXX_STANDARD 20)"),
    # A toolkit on this machine does not turn this into a build for GPUs.
    ("cmake/Modules/FindPytorch.cmake", "(CUDA_HOME is not None)", "False"),
    ("cmake/Modules/FindPytorch.cmake", "(ROCM_HOME is not None)", "False"),
    # Debugging information costs a third of the time.
    ("setup.py", "else 'RelWithDebInfo'", "else 'Release'"),
)
VARIABLES = {
    "HOROVOD_WITH_PYTORCH": "1",
    "HOROVOD_WITH_GLOO": "1",
    "HOROVOD_WITHOUT_MPI": "1",
    "HOROVOD_WITHOUT_TENSORFLOW": "1",
    "HOROVOD_WITHOUT_MXNET": "1",
    "CMAKE_POLICY_VERSION_MINIMUM": "3.5",  # CMake 4 refuses what the bundled Gloo asks for
    "CXXFLAGS": "-include cstdint",  # which GCC 13 no longer includes by itself
}


class Failed(Exception):
    """Why Horovod cannot be had, in one line."""


def obstacle() -> str | None:
    """Return what this machine lacks to build Horovod at all, if anything."""
    if sys.platform != "linux":
        return f"Horovod builds on Linux, not on {sys.platform}"
    chosen = os.environ.get("CXX", "").split()[:1]
    if not any(shutil.which(name) for name in (*chosen, "c++", "g++", "clang++")):
        return "there is no C++ compiler"
    if not Path(sysconfig.get_path("include"), "Python.h").exists():
        return f"there are no headers of Python {platform.python_version()}"
    return None


def fingerprint() -> str:
    """Return a hash of all that determines the wheel."""
    torch = importlib.metadata.version("torch")
    machine = (sysconfig.get_platform(), sysconfig.get_config_var("EXT_SUFFIX"))
    parts = (SHA256, EDITS, sorted(VARIABLES.items()), torch, machine)
    return hashlib.sha256(repr(parts).encode()).hexdigest()[:16]


def download(folder: Path) -> Path:
    """Fetch the source distribution into a folder and return its file."""
    asked = folder / "source.txt"
    asked.write_text(f"horovod=={VERSION} --hash=sha256:{SHA256}\n")
    command = ["download", "--require-hashes", "--no-deps", "--no-binary=:all:"]
    command += ["--no-build-isolation", f"--dest={folder}", f"--requirement={asked}"]
    pip("download", *command)
    (archive,) = folder.glob("horovod-*.tar.gz")
    return archive


def unpack(archive: Path, folder: Path) -> Path:
    """Unpack the source distribution, make the edits, and return the source's folder."""
    with tarfile.open(archive) as tar:
        tar.extractall(folder, filter="data")
    source = folder / f"horovod-{VERSION}"
    for name, old, new in EDITS:
        text = (source / name).read_text()
        if text.count(old) != 1:
            raise Failed(f"{name} has {old!r} {text.count(old)} times, not once")
        (source / name).write_text(text.replace(old, new))
    return source


def pip(step: str, *arguments: str | Path) -> None:
    """Run pip with its output in the log of this step."""
    log = CACHE / f"{step}.log"
    scripts = Path(sys.executable).parent
    variables = os.environ | VARIABLES
    variables["PATH"] = f"{scripts}{os.pathsep}{os.environ['PATH']}"  # for the layer's CMake
    variables["MAKEFLAGS"] = f"-j{len(os.sched_getaffinity(0))}"
    with log.open("w") as output:
        command = [sys.executable, "-m", "pip", "--verbose", *map(str, arguments)]
        done = subprocess.run(command, stdout=output, stderr=output, env=variables)
    if done.returncode != 0:
        errors = re.findall(r"^.*\b(?:[Ee]rror|ERROR):? .*$", log.read_text(errors="replace"), re.M)
        first = errors[0].strip() if errors else f"pip ended with {done.returncode}"
        raise Failed(f"the {step} failed: {first[:200]} (all of it: {os.path.relpath(log, ROOT)})")


def wheel() -> Path:
    """Return the wheel for this environment, which is built unless it is there."""
    home = CACHE / fingerprint()
    for made in home.glob("*.whl"):
        return made
    reason = obstacle()
    if reason:
        raise Failed(reason)
    CACHE.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=CACHE) as name:
        folder = Path(name)
        say(f"fetching Horovod {VERSION}")
        source = unpack(download(folder), folder)
        say(f"building Horovod {VERSION} (a few minutes, once)")
        options = ("--no-deps", "--no-build-isolation", "--no-index", f"--wheel-dir={folder}")
        pip("build", "wheel", *options, source)
        (made,) = folder.glob("*.whl")
        home.mkdir(exist_ok=True)
        return Path(shutil.move(made, home / made.name))


def say(text: str) -> None:
    print(f"==> {text}", flush=True)


def recorded() -> dict[str, str | None]:
    """Return the key of the last attempt in this environment, and why it failed, if it did."""
    try:
        return dict(json.loads(RECORD.read_text()))
    except (OSError, ValueError):
        return {}


def record(key: str, reason: str | None) -> None:
    RECORD.write_text(json.dumps({"key": key, "missing": reason}, indent=1) + "\n")


def install() -> None:
    """Install the wheel unless it is installed, and record the outcome."""
    key = fingerprint()
    if recorded() == {"key": key, "missing": None}:
        return
    try:
        made = wheel()
        say(f"installing {made.name}")
        pip("installation", "install", "--no-deps", "--no-index", "--force-reinstall", made)
    except Failed as failure:
        record(key, str(failure))
        raise
    record(key, None)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    modes = parser.add_mutually_exclusive_group()
    modes.add_argument("--optional", action="store_true", help="succeed where it cannot be built")
    modes.add_argument("--tests", action="store_true", help="succeed without it")
    chosen = parser.parse_args()
    last = recorded()
    reason = last.get("missing")
    tried = reason is not None and "the build failed" in reason and last["key"] == fingerprint()
    try:
        if not (chosen.tests and tried):
            install()
            return 0
    except Failed as failure:
        reason = str(failure)
    say(f"no Horovod, and no tests of it: {reason}")
    return 0 if chosen.tests or (chosen.optional and obstacle()) else 1


if __name__ == "__main__":
    sys.exit(main())
