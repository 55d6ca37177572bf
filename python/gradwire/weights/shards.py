"""Sharded checkpoints: several safetensors files, and an index that tells where each tensor is."""

import builtins
import contextlib
import errno
import itertools
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Self

from gradwire.errors import CorruptFileError
from gradwire.weights.file import File, Tensor
from gradwire.weights.header import MOST_HEADER, parse_json
from gradwire.weights.raw import RawTensor

INDEX = ".safetensors.index.json"
"""How the name of an index ends."""

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
        self.index, self.files = read_index(self.path), dict[str, File]()
        places = places_of(self.index)
        with contextlib.ExitStack() as stack:
            for shard in sorted({*places.values()}):
                self.files[shard] = stack.enter_context(
                    _shard(os.path.dirname(path), shard, mapped)
                )
            self._of = {name: file for file in self.files.values() for name in file}
            _check_places(places, self.files)
            stack.pop_all()
        each = (file.metadata.items() for file in self.files.values())
        self.metadata = dict(itertools.chain.from_iterable(each))

    def __getitem__(self, name: str) -> Tensor:
        """Return a tensor; see `File`."""
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
    found = _found(Path(path)) if os.path.isdir(path) else path
    kind = Shards if os.fspath(found).endswith(".json") else File
    return kind(found, mapped=mapped)


def _found(folder: Path) -> Path:
    """Return the file or the index that a folder holds."""
    names = sorted(each.name for each in folder.iterdir())
    indices = [name for name in names if name.endswith(INDEX)]
    single = [name for name in names if name.endswith(".safetensors")]
    usual = [name for name in ("model.safetensors", f"model{INDEX}") if name in names]
    candidates = usual[:1] or indices or single
    if len(candidates) != 1:
        others = [name for name in names if name.endswith(_OTHERS)]
        what = ", ".join(candidates[:5]) or ", but ".join(["no *.safetensors", *others[:1]])
        raise ValueError(f"the folder {str(folder)!r} has {what}: name the file, or the index")
    return folder / candidates[0]


def read_index(path: str) -> bytes:
    """Return the bytes of an index."""
    if os.path.exists(path) and not os.path.isfile(path):  # a pipe may never end
        raise OSError(errno.EINVAL, "it is not a regular file", path)
    with builtins.open(path, "rb") as file:
        index = file.read(MOST_HEADER + 1)
    if len(index) > MOST_HEADER:
        raise CorruptFileError(f"the index has more than {MOST_HEADER >> 20} MiB")
    return index


def places_of(index: bytes) -> dict[str, str]:
    """Return the names of shards by those of tensors."""
    about = parse_json(index, "the index")
    places, fields = about.get("weight_map"), about.get("metadata", {})
    if not isinstance(places, dict):
        raise ValueError("it is JSON without a weight_map: not the index of a sharded checkpoint")
    size = fields.get("total_size", 0) if isinstance(fields, dict) else None
    # Some tools count tied tensors twice, or write a float: only what is no size is refused.
    if isinstance(size, bool) or not isinstance(size, int | float) or not 0 <= size < 2**63:
        raise CorruptFileError(f"the metadata of the index is {fields!r:.100}")
    for name, shard in places.items():
        odd = not isinstance(shard, str) or shard in ("", ".", "..") or set(shard) & set("/\\\0")
        if odd or not shard.isprintable():
            raise CorruptFileError(
                f"the index says that it is in {shard!r:.100}, which is no file of its folder", name
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
    found: dict[str, str] = {}
    for shard, file in files.items():
        for name in file.stored():
            if name in found:
                raise CorruptFileError(f"it is in two shards, {found[name]!r} and {shard!r}", name)
            if name not in places:
                raise CorruptFileError(f"it is in {shard!r}, but not in the index", name)
            found[name] = shard
    for name, shard in places.items():
        if found.get(name) != shard:
            where = f"in {found[name]!r}" if name in found else "missing"
            raise CorruptFileError(
                f"the index says that it is in {shard!r}, but it is {where}", name
            )
