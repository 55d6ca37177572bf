"""Finds the library of the CUDA extension, loads it, and compares its kernels with the core."""

import importlib
import os
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import torch

from gradwire._native import VERSION
from gradwire.errors import ExtensionError
from gradwire.torch.backends.cuda.trial import Trial, run
from gradwire.torch.cuda import build


@dataclass(frozen=True)
class Status:
    """The library of the CUDA extension, or the reason why there is none."""

    #: The shared library.
    library: Path | None
    #: Where it is from, or what is missing and what to do.
    reason: str


def status() -> Status:
    """Return the library that `load` would load.

    The first of: the file that ``$GRADWIRE_CUDA_LIBRARY`` names; the package ``gradwire-cuda`` of
    this version; the build of `build_cuda` from the sources of this version.
    """
    if named := os.environ.get("GRADWIRE_CUDA_LIBRARY"):
        path = Path(named)
        if path.is_file():
            return Status(path, "named by GRADWIRE_CUDA_LIBRARY")
        return Status(None, f"GRADWIRE_CUDA_LIBRARY names {named}, which is not a file")
    try:
        package = importlib.import_module("gradwire_cuda")
    except ImportError:
        package = None
    if package is not None:
        if package.__version__ == VERSION:
            return Status(Path(str(package.library())), f"package gradwire-cuda {VERSION}")
        return Status(
            None,
            f"the package gradwire-cuda has version {package.__version__}, and gradwire {VERSION}: "
            f"build version {VERSION} with `make cuda` in the sources of gradwire",
        )
    return _from_cache()


def _from_cache() -> Status:
    """Return the library from the cache that has code for most of the GPUs here."""
    builds = build.cached()
    if not builds:
        return Status(
            None,
            "the CUDA extension is not installed: build it with gradwire.torch.cuda.build_cuda(), "
            "or as a wheel with `make cuda` in the sources of gradwire",
        )
    # A process that does not use CUDA is not made to: it might fork later.
    here = build.capabilities() if torch.cuda.is_initialized() else ()  # type: ignore[no-untyped-call]
    if not here:
        most = max(builds, key=lambda built: len(built.architectures))
        return Status(most.library, "built from source")
    served = [
        sum(build.runs_on(built.architectures, capability) for capability in here)
        for built in builds
    ]
    if max(served) > 0:
        return Status(builds[served.index(max(served))].library, "built from source")
    return Status(
        None,
        "the CUDA extension was built for "
        f"{', '.join(sorted({name for built in builds for name in built.architectures}))}, but the "
        f"GPUs here are {', '.join(build.names(here))}: build it for these with "
        "gradwire.torch.cuda.build_cuda()",
    )


@cache
def _load_library(path: Path) -> None:
    try:
        if (why := build.broken_seal(path.read_bytes())) is not None:
            raise ExtensionError(
                f"the CUDA extension {path} was not loaded: {why}. Build it again with "
                "gradwire.torch.cuda.build_cuda(), or remove it"
            )
        torch.ops.load_library(path)  # type: ignore[no-untyped-call]
    except OSError as error:
        raise ExtensionError(
            f"the CUDA extension {path} cannot be loaded by torch {torch.__version__}, "
            f"CUDA {torch.version.cuda}: {error}"
        ) from error


def load() -> Status:
    """Load the extension, once; its operators are then under ``torch.ops.gradwire``.

    Needs no GPU.

    Returns
    -------
    Status
        Of the library that is loaded.

    Raises
    ------
    ExtensionError
        If there is none, or torch cannot load it.
    """
    library = status()
    if library.library is None:
        raise ExtensionError(library.reason)
    _load_library(library.library)
    return library


def trial(device: torch.device | str | int = "cuda") -> Trial:
    """Compare all kernels of a device with the core, bit for bit, and report differences.

    This runs automatically at the first use of a device, up to the first difference, unless the
    environment variable ``GRADWIRE_CUDA_TRIAL`` is 0. This function runs all tests again, whatever
    the variable, and does not change how the device is used.

    Parameters
    ----------
    device : torch.device, str or int
        A GPU, by default the current one.

    Returns
    -------
    Trial
        Printed as a table: codec, steps, dtype and outcome.

    Raises
    ------
    ExtensionError
        There is no extension, no such GPU, or a kernel hangs.
    DeviceError
        The device was lost during a kernel.
    """
    load()
    place = torch.device(device)
    if (seen := torch.cuda.device_count()) <= (place.index or 0):
        only = os.environ.get("CUDA_VISIBLE_DEVICES")
        shown = "" if only is None else f", with CUDA_VISIBLE_DEVICES={only!r}"
        raise ExtensionError(f"there is no {place} to try: torch sees {seen} GPU(s){shown}")
    index = torch.cuda.current_device() if place.index is None else place.index
    return run(torch.device(place.type, index), whole=True)
