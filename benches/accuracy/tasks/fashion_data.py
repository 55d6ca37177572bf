"""Where Fashion-MNIST comes from: Debian's package, or a directory with its four files."""

import gzip
import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

PACKAGE = "dataset-fashion-mnist"
INSTALLED = Path("/usr/share/datasets/fashion-mnist")
NAMES = tuple(
    f"{part}-{kind}-ubyte" for part in ("train", "t10k") for kind in ("images-idx3", "labels-idx1")
)

Array = NDArray[np.uint8]


class MissingDataError(Exception):
    """The data is not here and cannot be fetched; the message is meant for the user."""


def folder(given: Path | None = None) -> Path:
    """Return a folder with the four files; fetch Debian's package into a cache if need be."""
    if given is not None:
        if missing := [name for name in NAMES if _find(given, name) is None]:
            raise MissingDataError(f"--data {given} has no {missing[0]}, packed with gzip or not")
        return given
    cache = _cache()
    for place in (INSTALLED, cache):
        if all(_find(place, name) is not None for name in NAMES):
            return place
    _fetch(cache)
    return cache


def load(place: Path) -> tuple[Array, Array, Array, Array]:
    images, labels, test_images, test_labels = (_read(place, name) for name in NAMES)
    return images, labels, test_images, test_labels


def _cache() -> Path:
    home = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(home) / "gradwire" / "fashion-mnist"


def _fetch(cache: Path) -> None:
    """Download and unpack Debian's package; neither takes root."""
    cache.mkdir(parents=True, exist_ok=True)
    print(f"fetching Debian's package {PACKAGE} (30 MB) into {cache}", file=sys.stderr)
    unpacked = cache / "unpacked"
    try:
        get = ["apt-get", "download", "--quiet", PACKAGE]
        subprocess.run(get, cwd=cache, capture_output=True, text=True, check=True)
        (package,) = cache.glob(f"{PACKAGE}_*.deb")
        subprocess.run(["dpkg-deb", "--extract", package, unpacked], check=True)
    except (OSError, ValueError, subprocess.CalledProcessError) as error:
        raise MissingDataError(
            f"Fashion-MNIST is not here, and apt-get could not download it ({error}). Install "
            f"Debian's or Ubuntu's package {PACKAGE}, or download "
            f"{', '.join(f'{name}.gz' for name in NAMES)} from "
            "https://github.com/zalandoresearch/fashion-mnist and name their folder with --data "
            "DIR; or leave the task out with --only text clicks headers"
        ) from None
    for name in NAMES:
        file = unpacked / INSTALLED.relative_to("/") / f"{name}.gz"
        file.replace(cache / file.name)
    shutil.rmtree(unpacked)
    package.unlink()


def _find(place: Path, name: str) -> Path | None:
    for file in (place / f"{name}.gz", place / name):
        if file.is_file():
            return file
    return None


def _read(place: Path, name: str) -> Array:
    """Read a file in the IDX format: a magic number, a length for each dimension, bytes."""
    file = _find(place, name)
    assert file is not None
    data = file.read_bytes()
    if file.suffix == ".gz":
        data = gzip.decompress(data)
    dimensions = data[3]
    shape = np.frombuffer(data, ">u4", dimensions, 4)
    return np.frombuffer(data, np.uint8, offset=4 + 4 * dimensions).reshape(shape)
