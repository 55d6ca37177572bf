"""Safetensors files of packed and other tensors, read lazily."""

import builtins
import errno
import hashlib
import math
import mmap
import os
import stat
from collections.abc import Iterator, Mapping
from typing import Any, BinaryIO, Self

import numpy as np
from numpy.typing import NDArray

from gradwire._files import word_for
from gradwire.errors import CorruptFileError, GradwireError
from gradwire.weights import coding
from gradwire.weights.header import (
    MORE,
    MOST_BASES,
    MOST_HEADER,
    MOST_ORIGINAL,
    NAMES,
    Header,
    RawTensor,
    Section,
    bits_of,
    original_header,
    parse,
)
from gradwire.weights.packed import Packed

Tensor = Packed | NDArray[Any] | RawTensor

_PIECE = 1 << 20
"""Bytes of a file that are read at a time."""


class File(Mapping[str, Tensor]):
    """The tensors of a safetensors file, by name; the result of `open`.

    Packed tensors are `Packed`, others arrays, or `RawTensor` where numpy lacks the dtype: all in
    the memory of the file. Nothing is copied, and unused pages are not read. A packed tensor is
    checked at first access: its lengths, shape, grids and checksum (further codes, when they are
    used). Other tensors have no checksum. They stay valid after `close`, unless the file is
    truncated or overwritten in place, which changes them too; ``mapped=False`` reads copies
    instead. Tensors saved losslessly, or as differences, are decoded to a new array at each access;
    their checksum is checked, and the SHA-256 of the base once. Threads and forked processes may
    read one open file.

    Attributes
    ----------
    metadata : dict of str to str
        The file's ``__metadata__``, without what describes packed tensors.
    header : bytes
        The header, as in the file.
    path : str
        Path from which it was opened.
    base : File or None
        The file to which its differences refer.
    """

    base: "File | None" = None

    def __init__(
        self, path: str | os.PathLike[str], *, mapped: bool = True, _above: tuple[str, ...] = ()
    ) -> None:
        self.path = located(path)
        self._file = _open_regular_file(path)
        self._mapped, self._base_checked = mapped, False
        self._checked: dict[str, Packed] = {}
        try:
            parsed = self._read_header()
            self._sections, self.metadata = parsed.sections, parsed.metadata
            self._about = parsed.about
            self._table = self._about.tensors
            self._further = {name + MORE for name, fields in self._table.items() if fields["more"]}
            self._map = memoryview(b"")
            if mapped and parsed.end:
                # Private pages: torch takes only memory that could be written to.
                self._map = memoryview(mmap.mmap(self._file.fileno(), 0, access=mmap.ACCESS_COPY))
            if self._about.base is not None:
                self.base = self._open_base(self._about.base, (*_above, os.path.realpath(path)))
        except BaseException:
            self._file.close()
            raise

    def _read_header(self) -> Header:
        size = os.fstat(self._file.fileno()).st_size
        length = int.from_bytes(self._file.read(8), "little")
        if size < 8 or not 2 <= length <= min(size - 8, MOST_HEADER):
            self._file.seek(0)
            if (word := word_for(self._file.read(64))) is not None:
                raise ValueError(f"it is not a safetensors file, but {word}")
            raise CorruptFileError(f"a header of {length} bytes does not fit in {size} bytes")
        self.header = self._file.read(length)
        self._start = 8 + length
        parsed = parse(self.header)
        if (end := self._start + parsed.end) != size:
            raise CorruptFileError(f"tensors end at {end}, the file at {size}")
        return parsed

    def __getitem__(self, name: str) -> Tensor:
        """Return a tensor.

        Raises
        ------
        KeyError
            There is none of this name.
        ImportError
            It is of bfloat16 or float8, and ml_dtypes is not installed.
        CorruptFileError
            It does not match its description in the file, or the file was truncated. The base is
            not the file with which it was saved.
        """
        if name in self._further:
            raise KeyError(name)
        if self.kind(name) is not None:
            return self.raw(name).array()
        if name not in self._checked:
            fields, frame = self._table[name], self.data(name)
            shape, more = fields["shape"], fields["more"]
            further = self.data(name + MORE) if more else None
            try:
                packed = Packed(frame, shape, fields["dtype"], further, more, fields["error"])
            except GradwireError as error:
                raise CorruptFileError(str(error), name) from None
            self._checked[name] = packed
        return self._checked[name]

    def raw(self, name: str) -> RawTensor:
        """Return the bytes of a tensor that is not packed, decoded if it is coded."""
        dtype, shape = self.kind(name) or ("", ())
        if self.coding_of(name) is None:
            return RawTensor(dtype, shape, np.frombuffer(self.data(name), np.uint8))
        nbytes = math.prod(shape) * (bits_of(dtype) or 0) // 8
        try:
            data = np.empty(nbytes, np.uint8)
        except MemoryError:
            raise MemoryError(f"{name!r} takes {nbytes} bytes, which are not free") from None
        self.entries(name).read(data)
        return RawTensor(dtype, shape, data)

    def coding_of(self, name: str) -> str | None:
        """Return "lossless" or "difference" of a tensor that is coded so, otherwise None."""
        return self._table[name]["coding"] if name in self._table else None

    def kind(self, name: str) -> tuple[str, tuple[int, ...]] | None:
        """Return the dtype and shape of an array; None of a packed tensor, and of none."""
        if name in self._table:
            fields = self._table[name]
            return None if fields["coding"] is None else (NAMES[fields["dtype"]], fields["shape"])
        section = None if name in self._further else self._sections.get(name)
        return None if section is None else (section.dtype, section.shape)

    def entries(self, name: str, *, forget: bool = False) -> coding.Entries:
        """Return a reader of the bytes of an array, from the first to the last.

        With ``forget``, pages that were read are dropped from memory, and with them any changes
        written to the file's arrays.
        """
        how, data = self.coding_of(name), self.data(name)
        done = self._forget if forget else _nothing
        if how is None:
            return coding.Plain(data, done)
        fields, base = self._table[name], None
        if how == "difference":
            assert self.base is not None
            assert self._about.base is not None
            if not self._base_checked and self.base.digest() != self._about.base["sha256"]:
                changed = self._about.base["name"]
                raise CorruptFileError(f"the base {changed!r} has changed: its SHA-256 differs")
            self._base_checked = True
            base = self.base.entries(name, forget=forget)
        return coding.Coded(data, name, NAMES[fields["dtype"]], fields["shape"], base, done)

    def _forget(self) -> None:
        if hasattr(mmap, "MADV_DONTNEED") and isinstance(pages := self._map.obj, mmap.mmap):
            pages.madvise(mmap.MADV_DONTNEED)

    def digest(self) -> str:
        """Return the SHA-256 of the whole file."""
        found, at = hashlib.sha256(), 0
        while piece := os.pread(self._file.fileno(), _PIECE, at):
            found.update(piece)
            at += len(piece)
        return found.hexdigest()

    @property
    def keeps_original(self) -> bool:
        """Whether the header of the original file is kept: `original` reads it."""
        return self._about.header is not None

    def original(self) -> tuple[bytes, dict[str, "Section"]]:
        """Return the header of the original file, and its tensors."""
        if self._about.header is None:
            raise CorruptFileError("the header of the original file was not kept")
        header = original_header(self._about.header, MOST_ORIGINAL * len(self.header))
        sections = parse(header).sections
        kinds = {name: (section.dtype, section.shape) for name, section in sections.items()}
        if kinds != {name: self.kind(name) for name in self}:
            raise CorruptFileError("the original header belongs to other tensors")
        return header, sections

    def _open_base(self, about: Mapping[str, str], above: tuple[str, ...]) -> "File":
        name = about["name"]
        path = os.path.join(os.path.dirname(self.path), name)
        if os.path.realpath(path) in above:
            raise CorruptFileError(f"its base {name!r} is itself a difference from it")
        if len(above) > MOST_BASES:
            raise CorruptFileError(f"more than {MOST_BASES} bases follow one another")
        try:
            base = File(path, mapped=self._mapped, _above=above)
        except OSError as error:
            message = f"its base {name!r} cannot be read at {path}: {error.strerror}"
            raise CorruptFileError(message) from None
        for each in self._table:
            if self.coding_of(each) == "difference" and base.kind(each) != self.kind(each):
                base.close()
                raise CorruptFileError(f"the base {name!r} has none of this kind", each)
        return base

    def stored(self) -> dict[str, list[int]]:
        """Return where the bytes of tensors are, by the names that other tools see."""
        return {name: section.range for name, section in self._sections.items()}

    def data(self, name: str) -> memoryview:
        """Return the bytes of a tensor as stored in the file; a copy if it is not mapped."""
        begin, end = (self._start + offset for offset in self._sections[name].range)
        if not self._file.closed and os.fstat(self._file.fileno()).st_size < end:
            raise CorruptFileError("the file was cut while it was open", name)
        if self._mapped:
            return self._map[begin:end]
        copy = memoryview(bytearray(end - begin))
        for at in range(begin, end, _PIECE):
            piece = os.pread(self._file.fileno(), min(_PIECE, end - at), at)
            copy[at - begin : at - begin + len(piece)] = piece
        return copy

    def __contains__(self, name: object) -> bool:
        return name in self._sections and name not in self._further

    def __iter__(self) -> Iterator[str]:
        return (name for name in self._sections if name not in self._further)

    def __len__(self) -> int:
        return len(self._sections) - len(self._further)

    def __repr__(self) -> str:
        packed = sum(fields["coding"] is None for fields in self._table.values())
        coded = f", {n} coded" if (n := len(self._table) - packed) else ""
        return f"File({self.path!r}, {len(self)} tensors, {packed} packed{coded})"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the file, and its base. Tensors already returned stay valid."""
        self._file.close()
        if self.base is not None:
            self.base.close()


def _nothing() -> None:
    pass


def located(path: str | os.PathLike[str]) -> str:
    """Return the path of a file with no link or ``..`` among its folders: others start there."""
    folder, name = os.path.split(os.fsdecode(path))
    return os.path.join(os.path.realpath(folder), name)


def _open_regular_file(path: str | os.PathLike[str]) -> BinaryIO:
    """Open a regular file. Nothing else is opened: it may wait for ever, or be a device."""
    mode = os.stat(path).st_mode
    if stat.S_ISREG(mode) or stat.S_ISDIR(mode):  # for a folder, the system has an error
        file = builtins.open(path, "rb", opener=_open_at_once)  # noqa: SIM115
        if stat.S_ISREG(os.fstat(file.fileno()).st_mode):
            return file
        file.close()
    raise OSError(errno.EINVAL, "it is not a regular file", os.fspath(path))


def _open_at_once(path: str, flags: int) -> int:
    """Open a file without waiting: a pipe may be in its place by now."""
    return os.open(path, flags | os.O_NONBLOCK)
