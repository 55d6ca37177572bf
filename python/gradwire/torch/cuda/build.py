"""Compiles the CUDA extension from the sources in this package, for the GPUs that are asked for."""

import functools
import hashlib
import os
import platform
import shlex
import shutil
import site
import string
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import torch
from filelock import FileLock

from gradwire._native import VERSION
from gradwire.errors import ExtensionError

Capability = tuple[int, int]  # as torch calls it: (9, 0) is that of architecture 90
# Those of a library for everyone; newer ones compile the last one's PTX.
ARCHITECTURES = ("80", "90", "100", "120")

SOURCES = Path(__file__).resolve().parents[1] / "csrc"
NAME = "libgradwire_cuda.so"

TARGET = "0x020b000000000000"  # the oldest torch it runs with: the stable ABI of 2.11

_FLAGS = (
    *("-std=c++20", "-O3", "-DNDEBUG", "-DUSE_CUDA", f"-DTORCH_TARGET_VERSION={TARGET}"),
    # A product and a sum round each on its own: frames are those of the CPU, byte for byte.
    "-fmad=false",
    "--threads=0",  # architectures at the same time
    *("-Xcompiler", "-fPIC,-fvisibility=hidden,-ffp-contract=off"),
)

_SEAL = b"gradwire-cuda-seal-1"
_SEALED = len(_SEAL) + 128  # with both hashes, in hexadecimal

_LINK = (
    *("-shared", "-nodlink"),  # no code is shared between sources
    # The runtime goes into the library, and stays its own: torch may have one of another release.
    *("-cudart=static", "-Xlinker", "--exclude-libs=ALL"),
)

NEEDED = ("-ltorch", "-ltorch_cpu", "-ltorch_cuda")


def cache_folder() -> Path:
    """Return where builds are kept: ``$GRADWIRE_CACHE``, or below the user's cache folder."""
    if chosen := os.environ.get("GRADWIRE_CACHE"):
        return Path(chosen)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "gradwire"


def _files() -> list[Path]:
    kinds = {".cu", ".cuh", ".h", ".cpp"}
    return sorted(path for path in SOURCES.rglob("*") if path.suffix in kinds)


def _key(architectures: Sequence[str], compiler: str) -> str:
    where = torch.__version__, platform.machine()
    return _hash([sources(), *_LINK, *architectures, compiler, *where])[:20]


@functools.cache
def sources() -> str:
    """Return a hash of the sources in this package, and of how they are compiled."""
    files = (part for path in _files() for part in (path.name, path.read_bytes()))
    return _hash([_SEAL, *files, *_FLAGS])


def _hash(parts: Iterable[str | bytes]) -> str:
    total = hashlib.sha256()
    for part in parts:
        data = part.encode() if isinstance(part, str) else part
        total.update(len(data).to_bytes(8, "little") + data)
    return total.hexdigest()


def sealed(data: bytes) -> bytes:
    """Return a library with its seal behind it: a hash of its sources, and one of itself."""
    return b"".join((data, _SEAL, sources().encode(), hashlib.sha256(data).hexdigest().encode()))


def broken_seal(data: bytes) -> str | None:
    """Return why a library was not built from these sources, or None if it was.

    The system's loader maps a truncated file, and kills the process at the first missing page; and
    kernels of other sources misread the structs of this package.
    """
    seal, source, content = data[-_SEALED:-128], data[-128:-64], data[-64:]
    if seal != _SEAL:
        return "it is damaged, or was not built by build_cuda() or `make cuda`"
    if content != hashlib.sha256(memoryview(data)[:-_SEALED]).hexdigest().encode():
        return "it is damaged: its bytes differ from those that were built"
    if source != sources().encode():
        return f"it was built from the sources of another gradwire than this one ({VERSION})"
    return None


@dataclass(frozen=True)
class Built:
    """A shared library that was built before."""

    library: Path
    architectures: tuple[str, ...]  # for which it has machine code; and the PTX of the last


def cached(folder: Path | None = None) -> list[Built]:
    """Return the libraries that were built from exactly these sources, the newest first.

    It needs no compiler: whichever built them, the sources and torch were the same.
    """
    pattern = f"{_key((), '')}-*/{NAME}"
    libraries = (folder or cache_folder()).glob(pattern)
    newest = sorted(libraries, key=os.path.getmtime, reverse=True)
    return [Built(path, tuple(path.parent.name.split("-")[1:-1])) for path in newest]


def _folder(architectures: Sequence[str], compiler: str) -> str:
    return "-".join([_key((), ""), *architectures, _key(architectures, compiler)])


def _gencode(architectures: Sequence[str]) -> list[str]:
    """Return the options of nvcc for machine code for all architectures, and PTX for the last."""
    made = [
        f"-gencode=arch=compute_{architecture},code=sm_{architecture}"
        for architecture in architectures
    ]
    last = architectures[-1]
    return [*made, f"-gencode=arch=compute_{last},code=compute_{last}"]


def capabilities() -> tuple[Capability, ...]:
    """Return the capabilities of the GPUs that torch sees. Begins to use CUDA in this process."""
    devices = range(torch.cuda.device_count())
    return tuple(sorted({torch.cuda.get_device_capability(device) for device in devices}))


def names(of: Sequence[Capability]) -> tuple[str, ...]:
    return tuple(f"{major}{minor}" for major, minor in of)


def runs_on(architectures: Sequence[str], capability: Capability) -> bool:
    """Tell whether a library that was made with `_gencode` has code for a GPU.

    Machine code runs on GPUs of the same major number from its minor number on, PTX on all later
    ones. Code for an architecture with a letter runs only on that one.
    """
    for architecture in architectures:
        digits = architecture.rstrip(string.ascii_lowercase)
        compiled = int(digits[:-1]), int(digits[-1])
        is_last = architecture == architectures[-1]  # whose PTX is there
        reaches = compiled[0] == capability[0] or is_last
        if compiled == capability or (
            architecture.isdecimal() and compiled <= capability and reaches
        ):
            return True
    return False


@dataclass(frozen=True)
class Toolkit:
    """A CUDA compiler, with the folders of headers and libraries that it needs."""

    nvcc: Path
    include: tuple[Path, ...] = ()
    libraries: tuple[Path, ...] = ()

    def version(self) -> str:
        return run([str(self.nvcc), "--version"])


def _machine_toolkit() -> Toolkit | None:
    homes = filter(None, (os.environ.get("CUDA_HOME"), os.environ.get("CUDA_PATH")))
    places = [Path(home, "bin", "nvcc") for home in homes]
    if nvcc_path := shutil.which("nvcc"):
        places.append(Path(nvcc_path))
    places.append(Path("/usr/local/cuda/bin/nvcc"))
    return next((Toolkit(nvcc) for nvcc in places if nvcc.is_file()), None)


def _wheel_toolkit() -> Toolkit | None:
    # A wheel of one part may lie in another folder than that of another part.
    folders = [*site.getsitepackages(), site.getusersitepackages(), *sys.path]
    roots = [Path(folder, "nvidia", "cu13") for folder in dict.fromkeys(folders) if folder]
    nvcc = next((path for root in roots if (path := root / "bin" / "nvcc").is_file()), None)
    if nvcc is None or not (nvcc.parent / "cudafe++").is_file():
        return None
    include = tuple(path for root in roots if (path := root / "include").is_dir())
    libraries = tuple(path for root in roots if (path := root / "lib").is_dir())
    return Toolkit(nvcc, include, libraries)


def find_toolkit() -> Toolkit:
    """Return the compiler of the machine, or else that of the registry's wheels.

    Looks at ``$CUDA_HOME``, ``$CUDA_PATH``, ``$PATH``, ``/usr/local/cuda``, and then at installed
    packages. Raises an ExtensionError if there is none.
    """
    toolkit = _machine_toolkit() or _wheel_toolkit()
    if toolkit is None:
        raise ExtensionError(
            "no CUDA compiler was found: install the CUDA toolkit (12 or 13) and set CUDA_HOME, or "
            "pip install nvidia-cuda-nvcc nvidia-cuda-runtime nvidia-cuda-crt nvidia-nvvm"
        )
    return toolkit


def build_cuda(
    *,
    architectures: Sequence[str] | None = None,
    folder: str | os.PathLike[str] | None = None,
    progress: Callable[[str, float], object] | None = None,
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
    progress : callable, optional
        Called as ``progress(what, done)`` with the last file that was compiled and the share of all
        that is done, from 0 to 1: `print`, or what moves a progress bar.

    Returns
    -------
    pathlib.Path
        The shared library. A later call with the same sources, torch, compiler and architectures
        returns it at once.

    Raises
    ------
    ExtensionError
        If there is no CUDA compiler, torch was built without CUDA, or the compiler fails; the
        message has its output.
    """
    return build(architectures, folder, progress or (lambda what, done: None), _link)


def _whole(library: Path) -> bool:
    return library.exists() and broken_seal(library.read_bytes()) is None


Link = Callable[[Toolkit, Path, Sequence[str], Path], None]
"""Makes a library from objects, beside torch's libraries in a folder."""


def build(
    architectures: Sequence[str] | None,
    folder: str | os.PathLike[str] | None,
    tell: Callable[[str, float], object],
    link: Link,
) -> Path:
    toolkit = find_toolkit()
    chosen = tuple(architectures or names(capabilities()) or ARCHITECTURES)
    root = Path(folder) if folder is not None else cache_folder()
    target = root / _folder(chosen, toolkit.version()) / NAME
    if _whole(target):
        return target
    libraries = Path(torch.__file__).parent / "lib"
    if not (libraries / "libtorch_cuda.so").exists():
        raise ExtensionError(
            f"torch {torch.__version__} was built without CUDA; install a build of torch with CUDA"
        )
    target.parent.mkdir(parents=True, exist_ok=True)
    with FileLock(target.with_suffix(".lock")):  # the ranks of a node compile once
        if _whole(target):
            return target
        with tempfile.TemporaryDirectory(dir=root) as scratch:
            objects = _compile(toolkit, chosen, libraries, Path(scratch), tell)
            made = Path(scratch) / NAME
            link(toolkit, libraries, objects, made)
            made.write_bytes(sealed(made.read_bytes()))
            made.replace(target)
    tell("done", 1.0)
    return target


def _compile(
    toolkit: Toolkit,
    architectures: Sequence[str],
    libraries: Path,
    scratch: Path,
    tell: Callable[[str, float], object],
) -> list[str]:
    include = (SOURCES, *toolkit.include, libraries.parent / "include")
    folders = [f"-I{path}" for path in include[:-1]] + [f"-isystem={include[-1]}"]
    common = [*_FLAGS, *_gencode(architectures)]

    def compiled(source: Path) -> str:
        name = "-".join(source.relative_to(SOURCES).with_suffix(".o").parts)
        made = str(scratch / name)
        run([str(toolkit.nvcc), *common, *folders, "-c", str(source), "-o", made])
        return made

    sources = [path for path in _files() if path.suffix in (".cu", ".cpp")]
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        objects = []
        for source, made in zip(sources, pool.map(compiled, sources), strict=True):
            objects.append(made)
            tell(source.name, len(objects) / (len(sources) + 1))
    return objects


def _link(toolkit: Toolkit, libraries: Path, objects: Sequence[str], made: Path) -> None:
    search = [f"-L{path}" for path in (*toolkit.libraries, libraries)]
    run([str(toolkit.nvcc), *_LINK, *objects, *search, *NEEDED, "-o", str(made)])


def _environment() -> dict[str, str]:
    """Return nvcc's environment without flags: they could change frames, but not a build's name."""
    adding = ("NVCC_APPEND_FLAGS", "NVCC_PREPEND_FLAGS")
    return {name: value for name, value in os.environ.items() if name not in adding}


def run(command: list[str]) -> str:
    """Run a compiler, and return its output; raise an ExtensionError with it on failure."""
    done = subprocess.run(command, env=_environment(), capture_output=True, text=True)
    if done.returncode != 0:
        raise ExtensionError(
            f"the CUDA extension could not be compiled: {shlex.join(command)}\n"
            f"{done.stdout}{done.stderr}"
        )
    return done.stdout
