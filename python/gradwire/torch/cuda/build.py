"""Compiles the CUDA extension from the sources in this package."""

import hashlib
import os
import platform
import shlex
import shutil
import subprocess
import tempfile
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import torch

from gradwire.errors import ExtensionError
from gradwire.torch.cuda.architectures import ALL, flags, names, of_devices
from gradwire.torch.cuda.toolkit import Toolkit, find

__all__ = ["NAME", "SOURCES", "TARGET", "Built", "build_cuda", "cache_folder", "cached"]

SOURCES = Path(__file__).resolve().parents[1] / "csrc"
NAME = "libgradwire_cuda.so"

TARGET = "0x020b000000000000"
"""The oldest torch that the library runs with: the stable ABI of 2.11."""

_FLAGS = (
    *("-std=c++20", "-O3", "-DNDEBUG", "-DUSE_CUDA", f"-DTORCH_TARGET_VERSION={TARGET}"),
    # A product and a sum round each on its own: frames are those of the CPU, byte for byte.
    "-fmad=false",
    *("-Xcompiler", "-fPIC,-fvisibility=hidden,-ffp-contract=off"),
)


_LINK = (
    "-shared",
    # The runtime goes into the library, and stays its own: torch may have one of another release.
    *("-cudart=static", "-Xlinker", "--exclude-libs=ALL"),
)


def cache_folder() -> Path:
    """Return where builds are kept: ``$GRADWIRE_CACHE``, or below the user's cache folder."""
    if chosen := os.environ.get("GRADWIRE_CACHE"):
        return Path(chosen)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "gradwire"


def _files() -> list[Path]:
    return sorted(path for path in SOURCES.rglob("*") if path.suffix in _KINDS)


_KINDS = {".cu", ".cuh", ".h", ".cpp"}


def _key(architectures: Sequence[str], compiler: str) -> str:
    total = hashlib.sha256()
    parts: Iterable[bytes] = (
        *(part for path in _files() for part in (path.name.encode(), path.read_bytes())),
        *(text.encode() for text in (*_FLAGS, *_LINK, *architectures, compiler)),
        *(torch.__version__.encode(), platform.machine().encode()),
    )
    for part in parts:
        total.update(len(part).to_bytes(8, "little") + part)
    return total.hexdigest()[:20]


@dataclass(frozen=True)
class Built:
    """A library that was built before.

    Attributes
    ----------
    library : pathlib.Path
        The shared library.
    architectures : tuple of str
        What it has machine code for; it has the PTX of the last.
    """

    library: Path
    architectures: tuple[str, ...]


def cached(folder: Path | None = None) -> list[Built]:
    """Return the libraries that were built from just these sources, the newest first.

    It asks for no compiler: whichever built them, the sources and torch were the same.
    """
    pattern = f"{_key((), '')}-*/{NAME}"
    found = sorted((folder or cache_folder()).glob(pattern), key=_time, reverse=True)
    return [Built(path, tuple(path.parent.name.split("-")[1:-1])) for path in found]


def _time(path: Path) -> float:
    return path.stat().st_mtime


def _folder(architectures: Sequence[str], compiler: str) -> str:
    """Return the name of the folder of a build, which tells its architectures."""
    return "-".join([_key((), ""), *architectures, _key(architectures, compiler)])


def build_cuda(
    *, architectures: Sequence[str] | None = None, folder: str | os.PathLike[str] | None = None
) -> Path:
    """Compile the CUDA extension, unless that was done before, and return the library.

    Takes a minute or two, and no GPU. `gradwire.torch.cuda.load` finds the library then.

    Parameters
    ----------
    architectures : sequence of str, optional
        Compute capabilities without the dot, as "90". Default: those of the GPUs of this machine,
        or of all current ones if it has none.
    folder : path, optional
        Where builds are kept. Default: ``$GRADWIRE_CACHE`` or the user's cache folder.

    Returns
    -------
    pathlib.Path
        The shared library. A later call with the same sources, torch, compiler and architectures
        returns it at once.

    Raises
    ------
    ExtensionError
        If there is no CUDA compiler, torch was built without CUDA, or the compiler fails; with its
        words.
    """
    toolkit = find()
    chosen = tuple(architectures or names(of_devices()) or ALL)
    root = Path(folder) if folder is not None else cache_folder()
    target = root / _folder(chosen, toolkit.version()) / NAME
    if target.exists():
        return target
    libraries = Path(torch.__file__).parent / "lib"
    if not (libraries / "libtorch_cuda.so").exists():
        raise ExtensionError(
            f"torch {torch.__version__} was built without CUDA; install a build of torch with CUDA"
        )
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=root) as scratch:
        made = _compile(toolkit, chosen, libraries, Path(scratch))
        # At once: another process may be building too.
        shutil.move(made, target.with_suffix(f".{os.getpid()}"))
        target.with_suffix(f".{os.getpid()}").replace(target)
    return target


def _compile(
    toolkit: Toolkit, architectures: Sequence[str], libraries: Path, scratch: Path
) -> Path:
    include = (SOURCES, *toolkit.include, libraries.parent / "include")
    folders = [f"-I{path}" for path in include[:-1]] + [f"-isystem={include[-1]}"]
    common = [*_FLAGS, *flags(architectures)]

    def compiled(source: Path) -> str:
        name = "-".join(source.relative_to(SOURCES).with_suffix(".o").parts)
        made = str(scratch / name)
        _run([str(toolkit.nvcc), *common, *folders, "-c", str(source), "-o", made])
        return made

    sources = [path for path in _files() if path.suffix in (".cu", ".cpp")]
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        objects = list(pool.map(compiled, sources))
    made = scratch / NAME
    search = [f"-L{path}" for path in (*toolkit.libraries, libraries)]
    needed = ["-ltorch", "-ltorch_cpu", "-ltorch_cuda"]
    _run([str(toolkit.nvcc), *_LINK, *common, *objects, *search, *needed, "-o", str(made)])
    return made


def _run(command: list[str]) -> None:
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode != 0:
        raise ExtensionError(
            f"the CUDA extension could not be compiled: {shlex.join(command)}\n"
            f"{done.stdout}{done.stderr}"
        )
