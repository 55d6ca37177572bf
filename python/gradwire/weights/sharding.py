"""Writes sharded checkpoints: all shards under other names first, and the index last."""

import contextlib
import json
import os
import re
import shutil
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import TypeVar

from gradwire import _files
from gradwire.weights.file import File
from gradwire.weights.shards import INDEX, Shards

T = TypeVar("T")

_UNITS = {"": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12}


def size_of(text: str) -> int:
    """Return the number of bytes that such as ``"5GB"`` means, as in Transformers.

    Raises
    ------
    ValueError
        It is not a number with KB, MB, GB or TB, powers of 1,000.
    """
    found = re.fullmatch(r"(\d+(?:\.\d+)?) *([KMGT]?B|)", text.strip().upper())
    unit = found[2].removesuffix("B") + "B" * (len(found[2]) > 1) if found else ""
    if not found or (size := int(float(found[1]) * _UNITS[unit])) < 1:
        raise ValueError(f"a size of shards is such as 5GB or 200MB, got {text!r}")
    return size


def split(
    items: Iterable[tuple[str, T]], most: float, nbytes: Callable[[T], int]
) -> Iterator[dict[str, T]]:
    """Yield the items of each shard: in order, up to so many bytes; what is larger is alone."""
    part: dict[str, T] = {}
    total = 0
    for name, item in items:
        size = nbytes(item)
        if part and total + size > most:
            yield part
            part, total = {}, 0
        part[name] = item
        total += size
    yield part


class Target:
    """Where the shards of a checkpoint are written: a folder, the name of an index, or of a file.

    A name ``x.safetensors`` is that of the only file, and stands for ``x.safetensors.index.json``
    if there are more.

    Parameters
    ----------
    path : path-like
        The name, or a folder, which is created.
    source : File or Shards
        What is written again. In a folder its name is taken.
    """

    def __init__(self, path: str | os.PathLike[str], source: File | Shards) -> None:
        given = Path(path)
        in_folder = given.is_dir() or not given.name.endswith((".safetensors", ".json"))
        name = os.path.basename(source.path) if in_folder else given.name
        self.folder = given if in_folder else given.parent
        self.stem = name.removesuffix(".index.json").removesuffix(".safetensors")
        # Whether one file is written without an index, if all fits in it.
        self.alone = name.endswith(".safetensors")
        self._made = in_folder and not given.exists()

    @contextlib.contextmanager
    def _staging(self) -> Iterator[Path]:
        """Yield a folder in this one whose files are moved when all are complete."""
        if self._made:
            self.folder.mkdir(parents=True)
        lock = _files.part(self.folder)
        staging = Path(lock.name + _files.STAGED)
        try:
            with lock:
                staging.mkdir(0o700)
                yield staging
        finally:
            shutil.rmtree(staging, ignore_errors=True)
            Path(lock.name).unlink(missing_ok=True)  # the lock is gone, and so may be the file
            if self._made:
                with contextlib.suppress(OSError):  # it has what was moved there
                    self.folder.rmdir()

    def write(self, writes: Iterable[Callable[[Path], None]]) -> None:
        """Write shards of new names, each by a function of its path, and the index last."""
        with self._staging() as staging:
            count = 0
            for count, write in enumerate(writes, 1):
                write(staging / f"{count:05}")
            if count == 1 and self.alone:
                (staging / "00001").replace(self.folder / f"{self.stem}.safetensors")
                return
            names = [f"{self.stem}-{i:05}-of-{count:05}.safetensors" for i in range(1, count + 1)]
            places, total = dict[str, str](), 0
            for i, name in enumerate(names, 1):
                with File(staging / f"{i:05}") as file:
                    places |= dict.fromkeys(file.stored(), name)
                    total += sum(end - begin for begin, end in file.stored().values())
                (staging / f"{i:05}").replace(self.folder / name)
            index = {"metadata": {"total_size": total}, "weight_map": dict(sorted(places.items()))}
            self._finish(json.dumps(index, indent=2).encode() + b"\n", {*names})

    def rewrite(self, shards: Shards, write: Callable[[File, Path], None]) -> None:
        """Write shards of the same names and the index, each by a function of it and a path."""
        if self.alone:
            raise ValueError(
                f"each of the {len(shards.files)} shards stays one file: write to a folder or to "
                f"*{INDEX}"
            )
        with self._staging() as staging:
            for name, file in shards.files.items():
                write(file, staging / name)
            for name in shards.files:
                (staging / name).replace(self.folder / name)
            self._finish(shards.index, {*shards.files})

    def _finish(self, index: bytes, names: set[str]) -> None:
        """Write the index; then remove what was written under this name before, as others do.

        Readers of a folder would take ``model.safetensors`` instead of the index. An old index is
        not believed: it could name any file of the folder.
        """
        _files.write(self.folder / f"{self.stem}{INDEX}", index)
        stale = re.compile(rf"{re.escape(self.stem)}(-\d{{5}}-of-\d{{5}})?\.safetensors")
        for path in list(self.folder.iterdir()):
            if stale.fullmatch(path.name) and path.name not in names:
                path.unlink()
