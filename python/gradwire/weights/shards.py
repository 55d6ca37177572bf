"""Sharded checkpoints: several safetensors files, and an index that tells where each tensor is.

They are written under other names first, and the index last.
"""

import builtins
import contextlib
import errno
import json
import os
import re
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Self, TypeVar

from gradwire import _files
from gradwire._validate import require
from gradwire.errors import CorruptFileError
from gradwire.weights.file import File, Tensor
from gradwire.weights.header import MOST_HEADER, RawTensor, parse_json, require_valid

INDEX = ".safetensors.index.json"
"""How the name of an index ends."""

T = TypeVar("T")

_UNITS = {"": 1, "B": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12}

_OTHERS = (".bin", ".pt", ".pth", ".ckpt", ".gguf", ".onnx", ".h5", ".msgpack", ".npz")


class Shards(Mapping[str, Tensor]):
    """The tensors of a sharded checkpoint, by name; the result of `open` for an index or a folder.

    Each shard is a `File`. Tensors are in the order of the shards.

    Attributes
    ----------
    metadata : dict of str to str
        That of all shards.
    path : str
        Path of the index.
    index : bytes
        The index, as in its file.
    files : dict of str to File
        The shards by name of the file.
    """

    def __init__(self, path: str | os.PathLike[str], *, mapped: bool = True) -> None:
        self.path = os.path.abspath(os.fspath(path))
        self.index, self.files = _read_index(self.path), dict[str, File]()
        places = _places_of(self.index)
        with contextlib.ExitStack() as stack:
            for shard in sorted({*places.values()}):
                self.files[shard] = stack.enter_context(
                    _shard(os.path.dirname(path), shard, mapped)
                )
            self._of = {name: file for file in self.files.values() for name in file}
            _check_places(places, self.files)
            stack.pop_all()
        self.metadata: dict[str, str] = {}
        for file in self.files.values():
            self.metadata.update(file.metadata)

    def __getitem__(self, name: str) -> Tensor:
        return self._of[name][name]

    def raw(self, name: str) -> RawTensor:
        """See `File.raw`."""
        return self._of[name].raw(name)

    def coding_of(self, name: str) -> str | None:
        """See `File.coding_of`."""
        return self._of[name].coding_of(name)

    def kind(self, name: str) -> tuple[str, tuple[int, ...]] | None:
        """See `File.kind`."""
        return self._of[name].kind(name) if name in self else None

    def data(self, name: str) -> memoryview:
        """See `File.data`."""
        return self._of[name].data(name)

    def __contains__(self, name: object) -> bool:
        return name in self._of

    def __iter__(self) -> Iterator[str]:
        return iter(self._of)

    def __len__(self) -> int:
        return len(self._of)

    def __repr__(self) -> str:
        return f"Shards({self.path!r}, {len(self)} tensors in {len(self.files)} files)"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close all shards. Tensors already returned stay valid."""
        for file in self.files.values():
            file.close()


def open(path: str | os.PathLike[str], *, mapped: bool = True) -> File | Shards:
    """Open a safetensors file, or a sharded checkpoint, and read the headers.

    Parameters
    ----------
    path : path-like
        A file with packed tensors or without; the index of a sharded checkpoint, a file named
        ``*.index.json``; or a folder with one of them. If a folder has several, it is
        ``model.safetensors`` or the index of this name.
    mapped : bool
        Read tensors from the files' pages as they are used. If a file is then overwritten in
        place, which `save` never does, they change. With False they are copies, read on access.

    Returns
    -------
    File or Shards

    Raises
    ------
    CorruptFileError
        A header is invalid, or describes packed tensors that are missing. The base of a file of
        differences is not where it says, is not a regular file, or has other shapes and dtypes;
        bases form a cycle, or a chain of more than 16. An index is invalid, or does not fit its
        shards.
    ValueError
        The file is of another format, such as a pickle, or the folder has no checkpoint.
    OSError
        The file cannot be read.
    """
    file = _file_in(Path(path)) if os.path.isdir(path) else path
    kind = Shards if os.fspath(file).endswith(".json") else File
    return kind(file, mapped=mapped)


def _file_in(folder: Path) -> Path:
    """Return the file or the index that a folder holds."""
    names = sorted(entry.name for entry in folder.iterdir())
    indices = [name for name in names if name.endswith(INDEX)]
    single = [name for name in names if name.endswith(".safetensors")]
    usual = [name for name in ("model.safetensors", f"model{INDEX}") if name in names]
    candidates = usual[:1] or indices or single
    if len(candidates) != 1:
        others = [name for name in names if name.endswith(_OTHERS)]
        what = ", ".join(candidates[:5]) or ", but ".join(["no *.safetensors", *others[:1]])
        raise ValueError(f"the folder {str(folder)!r} has {what}: name the file, or the index")
    return folder / candidates[0]


def _read_index(path: str) -> bytes:
    if os.path.exists(path) and not os.path.isfile(path):  # a pipe may never end
        raise OSError(errno.EINVAL, "it is not a regular file", path)
    with builtins.open(path, "rb") as file:
        index = file.read(MOST_HEADER + 1)
    fits = len(index) <= MOST_HEADER
    require_valid(fits, "the index has more than {} MiB", MOST_HEADER >> 20)
    return index


def _places_of(index: bytes) -> dict[str, str]:
    """Return the names of shards by those of tensors."""
    about = parse_json(index, "the index")
    places, fields = about.get("weight_map"), about.get("metadata", {})
    if not isinstance(places, dict):
        raise ValueError("it is JSON without a weight_map: not the index of a sharded checkpoint")
    size: Any = fields.get("total_size", 0) if isinstance(fields, dict) else None
    # Some tools count tied tensors twice, or write a float: only what is no size is refused.
    is_size = type(size) in (int, float) and 0 <= size < 2**63
    require_valid(is_size, "the metadata of the index is {!r:.100}", fields)
    for name, shard in places.items():
        odd = not isinstance(shard, str) or shard in ("", ".", "..") or set(shard) & set("/\\\0")
        require_valid(
            not odd and shard.isprintable(),
            "the index says that it is in {!r:.100}, which is no file of its folder",
            shard,
            name=name,
        )
    return places


def _shard(folder: str, name: str, mapped: bool) -> File:
    try:
        return File(os.path.join(folder, name), mapped=mapped)
    except FileNotFoundError:
        raise CorruptFileError(
            f"the shard {name!r} is not in the folder of its index: download or copy it there"
        ) from None
    except CorruptFileError as error:
        raise CorruptFileError(f"the shard {name!r}: {error.reason}", error.name) from None
    except ValueError as error:
        raise ValueError(f"the shard {name!r}: {error}") from None


def _check_places(places: Mapping[str, str], files: Mapping[str, File]) -> None:
    shard_of: dict[str, str] = {}
    for shard, file in files.items():
        for name in file.stored():
            other = shard_of.setdefault(name, shard)
            require_valid(
                other == shard, "it is in two shards, {!r} and {!r}", other, shard, name=name
            )
            listed = name in places
            require_valid(listed, "it is in {!r}, but not in the index", shard, name=name)
    for name, shard in places.items():
        where = f"in {shard_of[name]!r}" if name in shard_of else "missing"
        right = shard_of.get(name) == shard
        message = "the index says that it is in {!r}, but it is {}"
        require_valid(right, message, shard, where, name=name)


def size_of(text: str) -> int:
    """Return how many bytes ``"5GB"`` means: powers of 1,000, as in Transformers."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?) *([KMGT]?B|)", text.strip().upper())
    size = int(float(match[1]) * _UNITS[match[2]]) if match else 0
    require(size >= 1, "a size of shards is such as 5GB or 200MB, got {!r}", text)
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
    if there are more. A folder is created, and the files in it have the name of the source.
    """

    def __init__(self, path: str | os.PathLike[str], source: File | Shards) -> None:
        target = Path(path)
        in_folder = target.is_dir() or not target.name.endswith((".safetensors", ".json"))
        name = os.path.basename(source.path) if in_folder else target.name
        self.folder = target if in_folder else target.parent
        self.stem = name.removesuffix(".index.json").removesuffix(".safetensors")
        # Whether one file is written without an index, if all fits in it.
        self.alone = name.endswith(".safetensors")
        self._is_new = in_folder and not target.exists()

    @contextlib.contextmanager
    def _staging(self) -> Iterator[Path]:
        """Yield a folder in this one whose files are moved when all are complete."""
        if self._is_new:
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
            if self._is_new:
                with contextlib.suppress(OSError):  # it has what was moved there
                    self.folder.rmdir()

    def write(self, parts: Iterable[T], save: Callable[[Path, T], None]) -> None:
        """Write shards of new names, by a function of a path and a part, and the index last."""
        with self._staging() as staging:
            count = 0
            for count, part in enumerate(parts, 1):
                save(staging / f"{count:05}", part)
            if count == 1 and self.alone:
                (staging / "00001").replace(self.folder / f"{self.stem}.safetensors")
                return
            names = [f"{self.stem}-{i:05}-of-{count:05}.safetensors" for i in range(1, count + 1)]
            places, total = dict[str, str](), 0
            for i, name in enumerate(names, 1):
                staged = staging / f"{i:05}"
                with File(staged) as file:
                    places |= dict.fromkeys(file.stored(), name)
                    total += sum(end - begin for begin, end in file.stored().values())
                staged.replace(self.folder / name)
            index = {"metadata": {"total_size": total}, "weight_map": dict(sorted(places.items()))}
            self._finish(json.dumps(index, indent=2).encode() + b"\n", {*names})

    def rewrite(self, shards: Shards, write: Callable[[File, Path], None]) -> None:
        """Write shards of the same names and the index, each by a function of it and a path."""
        require(
            not self.alone,
            "each of the {} shards stays one file: write to a folder or to *{}",
            *(len(shards.files), INDEX),
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
