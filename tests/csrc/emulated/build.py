"""Compile the CUDA sources, and the tests' entry points to them, for the host.

One object per source, named by the hash of everything that goes into it: the source, the files it
includes, the flags and the compiler. So only what has changed is compiled again.
"""

from __future__ import annotations

import hashlib
import os
import re
import shlex
import shutil
import subprocess
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from pathlib import Path

import torch

from gradwire.torch.cuda.build import TARGET

ROOT = Path(__file__).resolve().parents[3]
CSRC = ROOT / "python" / "gradwire" / "torch" / "csrc"
TESTS = ROOT / "tests" / "csrc"
EMULATED = TESTS / "emulated"
CACHE = ROOT / ".cache" / "emulated"

FLAGS = (
    *("-std=c++20", "-O2", "-g1", "-fPIC", "-ffp-contract=off", "-fno-strict-aliasing"),
    *("-Wall", "-Wextra", "-Werror", "-Wno-unused-function", "-Wno-unknown-pragmas"),
)
SANITIZE = ("-fsanitize=address,undefined", "-fno-sanitize-recover=undefined")
RACES = ("-DEMULATED_RACES", "-O1", "-g")
"""Of a build that watches for races: as few accesses as possible are moved or joined."""
INCLUDE = re.compile(r'^\s*#\s*include\s*["<]([^">]+)[">]', re.MULTILINE)


class BuildError(RuntimeError):
    """There is no C++ compiler, or it refuses a source."""


def compiler() -> str:
    """Return the C++ compiler: the one that ``CXX`` names, else the first one found."""
    for name in filter(None, (os.environ.get("CXX"), "g++", "clang++", "c++")):
        if found := shutil.which(shlex.split(name)[0]):
            return found
    raise BuildError(
        "The tests of the CUDA kernels need a C++20 compiler, and none was found: install g++ 11 "
        "or clang 15 or newer (Debian: apt install g++), or name one with CXX=/path/to/compiler."
    )


@cache
def version(cxx: str) -> str:
    return subprocess.run([cxx, "--version"], capture_output=True, text=True, check=True).stdout


@cache
def closure(source: Path) -> frozenset[Path]:
    """Return the source and all files of this project that it includes."""
    files = {source}
    for name in INCLUDE.findall(source.read_text()):
        for folder in (source.parent, EMULATED, CSRC, TESTS):
            if (path := (folder / name).resolve()).is_file():
                files |= closure(path)
                break
    return frozenset(files)


def sources(*, races: bool = False) -> list[Path]:
    """Return all kernels, the operators, the machine and the entry points of the tests."""
    callers = [*(CSRC / "ops").glob("*.cpp"), *TESTS.rglob("*.cu")]
    detector = (EMULATED / "races").glob("*.cpp") if races else ()
    return sorted([*CSRC.rglob("*.cu"), *callers, *EMULATED.glob("*.cpp"), *detector])


@cache
def watched_flags(cxx: str) -> tuple[str, ...]:
    """Return what has the compiler call the race detector at each access of a kernel."""
    if "clang" in version(cxx):
        return ("-fsanitize=thread", "-mllvm", "-tsan-distinguish-volatile=1")
    return ("-fsanitize=thread", "--param=tsan-distinguish-volatile=1")


@cache
def torch_flags() -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return how operators are compiled, for the stable ABI of the oldest torch, and linked."""
    root = Path(torch.__file__).parent
    version = (f"-DTORCH_TARGET_VERSION={TARGET}", f"-DTORCH_IS={torch.__version__}")
    return (f"-isystem{root / 'include'}", *version), (
        f"-L{root / 'lib'}",
        "-ltorch",
        "-ltorch_cpu",
    )


def run(command: list[str]) -> None:
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode != 0:
        raise BuildError(f"{shlex.join(command)}\n{done.stdout}{done.stderr}")


def key(*parts: str | Path) -> str:
    total = hashlib.sha256()
    for part in parts:
        data = part.read_bytes() if isinstance(part, Path) else part.encode()
        total.update(f"{len(data)}\0".encode() + data)
    return total.hexdigest()[:24]


def replace(made: Path, target: Path) -> None:
    """Put a finished file in its place at once: another process may be building too."""
    made.replace(target)


def build(*, sanitized: bool = False, races: bool = False) -> Path:
    """Return the shared library, which torch can load; built as far as needed.

    With ``sanitized``, under the address and undefined-behaviour sanitizers; with ``races``, with
    the race detector.

    Raises
    ------
    BuildError
        If there is no compiler, or a source does not compile; with the compiler's words.
    """
    cxx = compiler()
    flags = [*FLAGS, *(SANITIZE if sanitized else ()), *(RACES if races else ())]
    CACHE.mkdir(parents=True, exist_ok=True)

    def compiled(source: Path) -> Path:
        files = sorted(closure(source))
        own = [*flags, *(torch_flags()[0] if source.parent.name == "ops" else ())]
        if races and source.suffix == ".cu":
            own += watched_flags(cxx)
        target = CACHE / f"{source.stem}-{key(version(cxx), *own, source.name, *files)}.o"
        if not target.exists():
            made = target.with_suffix(f".{os.getpid()}.tmp")
            folders = [f"-I{folder}" for folder in (EMULATED, CSRC, TESTS)]
            language = ["-x", "c++"]
            run([cxx, *own, *folders, *language, "-c", str(source), "-o", str(made)])
            replace(made, target)
        return target

    closure.cache_clear()
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        objects = list(pool.map(compiled, sources(races=races)))
    library = CACHE / f"libkernels-{key(cxx, *flags, *(path.name for path in objects))}.so"
    if not library.exists():
        made = library.with_suffix(f".{os.getpid()}.tmp")
        run([cxx, *flags, "-shared", *map(str, objects), *torch_flags()[1], "-o", str(made)])
        replace(made, library)
    return library


def proof(library: Path) -> Path:
    """Return the file that says that the tests of this folder have passed with this library.

    Its name is a hash of all that they depend on, but for the package's adaptors to frameworks.
    """
    package = ROOT / "python" / "gradwire"
    files = {*package.rglob("*.py"), *package.glob("_native*"), *(ROOT / "tests").glob("*.py")}
    files -= set((package / "torch").rglob("*.py")) | set((package / "cli").rglob("*.py"))
    files |= set((package / "torch" / "backends").rglob("*.py"))
    files |= {*TESTS.rglob("*.py"), *(ROOT / "tests" / "presets").glob("*.py")}
    return CACHE / f"{library.stem}-{key(library, *sorted(files))}.passed"


if __name__ == "__main__":
    build()
