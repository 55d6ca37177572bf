"""Finds a CUDA compiler, and what it needs."""

import os
import shutil
import site
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from gradwire.errors import ExtensionError

__all__ = ["Toolkit", "find"]


@dataclass(frozen=True)
class Toolkit:
    """A CUDA compiler, and the folders that it does not find on its own.

    Attributes
    ----------
    nvcc : pathlib.Path
        The compiler.
    include, libraries : tuple of pathlib.Path
        Folders of headers and of libraries.
    """

    nvcc: Path
    include: tuple[Path, ...] = ()
    libraries: tuple[Path, ...] = ()

    def version(self) -> str:
        """Return what the compiler says of itself."""
        asked = [str(self.nvcc), "--version"]
        return subprocess.run(asked, capture_output=True, text=True, check=True).stdout


def _of_the_machine() -> Toolkit | None:
    homes = [os.environ.get("CUDA_HOME"), os.environ.get("CUDA_PATH"), "/usr/local/cuda"]
    for home in filter(None, homes[:2]):
        if (nvcc := Path(home, "bin", "nvcc")).is_file():
            return Toolkit(nvcc)
    if found := shutil.which("nvcc"):
        return Toolkit(Path(found))
    nvcc = Path("/usr/local/cuda/bin/nvcc")
    return Toolkit(nvcc) if nvcc.is_file() else None


def _of_wheels() -> Toolkit | None:
    # A wheel of one part may lie in another folder than that of another part.
    folders = [*site.getsitepackages(), site.getusersitepackages(), *sys.path]
    roots = [Path(folder, "nvidia", "cu13") for folder in dict.fromkeys(folders) if folder]
    nvcc = next((path for root in roots if (path := root / "bin" / "nvcc").is_file()), None)
    if nvcc is None or not (nvcc.parent / "cudafe++").is_file():
        return None
    include = tuple(path for root in roots if (path := root / "include").is_dir())
    libraries = tuple(path for root in roots if (path := root / "lib").is_dir())
    return Toolkit(nvcc, include, libraries)


def find() -> Toolkit:
    """Return the compiler of the machine, or else that of the registry's wheels.

    Looks at ``$CUDA_HOME``, ``$CUDA_PATH``, ``$PATH``, ``/usr/local/cuda``, and then at installed
    packages.

    Raises
    ------
    ExtensionError
        If there is none.
    """
    found = _of_the_machine() or _of_wheels()
    if found is None:
        raise ExtensionError(
            "no CUDA compiler was found: install the CUDA toolkit 13 and set CUDA_HOME, or "
            "pip install nvidia-cuda-nvcc nvidia-cuda-runtime nvidia-cuda-crt nvidia-nvvm"
        )
    return found
