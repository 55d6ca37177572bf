"""Writes files of tensors: packed, uncoded, or losslessly coded."""

import base64
import contextlib
import dataclasses
import itertools
import json
import math
import os
import shutil
import stat
import tempfile
import zlib
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from gradwire import _files, _native
from gradwire.errors import CorruptFileError
from gradwire.weights import coding
from gradwire.weights.file import File, Tensor, located
from gradwire.weights.header import (
    KEY,
    MORE,
    MOST_BASES,
    MOST_HEADER,
    MOST_ORIGINAL,
    MOST_PARENTS,
    PACKED,
    VERSION,
    RawTensor,
    bits_of,
    is_base_name,
    name_of,
    parse,
)
from gradwire.weights.packed import Packed


@dataclasses.dataclass(frozen=True)
class Content:
    """A tensor to write; ``data`` returns its bytes when it is written, ``about`` describes it."""

    dtype: str
    shape: tuple[int, ...]
    nbytes: int
    data: Callable[[], Any]
    about: Mapping[str, Any] | None = None


def save(
    path: str | os.PathLike[str],
    tensors: Mapping[str, Tensor],
    metadata: Mapping[str, str] | None = None,
    *,
    lossless: bool = False,
    base: str | os.PathLike[str] | None = None,
) -> None:
    """Write a safetensors file of packed and other tensors.

    It is written to a temporary file in the same folder, and renamed once complete and on disk.
    Tensors are taken from the mapping one at a time. What `open` would refuse is refused here.

    Parameters
    ----------
    path : path-like
        The target; an existing file is replaced.
    tensors : mapping of str to Packed, numpy.ndarray or RawTensor
        Arrays of any dtype that safetensors and numpy know; others as `RawTensor`.
    metadata : mapping of str to str, optional
        Further entries of the file's ``__metadata__``.
    lossless : bool
        Code arrays of bfloat16, float16 and float32 losslessly if that is shorter, including the
        bits of NaN. Other tools see only their names and bytes.
    base : path-like, optional
        An earlier file: arrays are written as differences from those of the same name, dtype and
        shape there. It must stay unchanged, and where it is as seen from the new file: in the same
        folder, or in one that at most two ``..`` lead to, as from ``checkpoint-200`` to
        ``../checkpoint-100``. It may itself have a base, in chains of up to 16.

    Raises
    ------
    TypeError
        A tensor is no array, or of a dtype that such files cannot hold; a name is no string.
    ValueError
        A name is used twice, as by the further bits of another tensor, or the metadata has the key
        ``"gradwire"``, or what is no string. The target is the base, or a base of that; the base is
        too far away, or the chain too long.
    CorruptFileError
        The base is not valid.
    CorruptFrameError
        The further bits of a packed tensor are corrupt.
    OSError
        The file cannot be written, or the base not read; an existing file is unchanged.
    """
    sections: dict[str, Content] = {}
    for name, tensor in tensors.items():
        if not isinstance(name, str):
            raise TypeError(f"names must be strings, got {name!r:.100}")
        for each, section in _sections(name, tensor, partial(tensors.__getitem__, name)):
            if each in sections or each == "__metadata__":
                raise ValueError(f"the name {each!r} is taken")
            sections[each] = section
    write(path, sections, metadata, lossless=lossless, base=base)


def _sections(name: str, tensor: Tensor, read: Callable[[], Any]) -> Iterator[tuple[str, Content]]:
    """Yield what is written of a tensor; ``read`` returns it again when it is written."""
    if isinstance(tensor, RawTensor):
        yield name, Content(tensor.dtype, tensor.shape, tensor.nbytes, lambda: read().data)
        return
    masked = isinstance(tensor, np.ma.MaskedArray)  # a file has no place for the mask
    if masked or not isinstance(tensor, (Packed, np.ndarray, np.generic)):
        raise TypeError(f"{name!r} must be an array or packed, got {type(tensor).__name__}")
    if not isinstance(tensor, Packed):
        known = name_of(np.dtype(tensor.dtype))
        if known is None:
            raise TypeError(f"{name!r} is of {tensor.dtype}, which a safetensors file cannot hold")
        yield name, Content(known, tensor.shape, tensor.nbytes, lambda: bytes_of(read()))
        return
    about: dict[str, Any] = {"shape": tensor.shape, "dtype": tensor.dtype}
    if tensor.more:
        about["further"] = [tensor.more]
    if tensor.measured is not None and math.isfinite(tensor.measured):
        about["error"] = float(f"{tensor.measured:.4g}")
    nbytes = memoryview(tensor.frame).nbytes
    yield name, Content(PACKED, (nbytes,), nbytes, lambda: read().frame, about)
    if tensor.further is not None:
        tensor.joined()  # checks the further bits, which nobody may have used
        nbytes = memoryview(tensor.further).nbytes
        yield name + MORE, Content(PACKED, (nbytes,), nbytes, lambda: read().further)


def bytes_of(array: Any) -> NDArray[np.uint8]:
    """Return the bytes of an array as files hold them: row by row, little-endian."""
    array = np.ascontiguousarray(array, np.dtype(array.dtype).newbyteorder("<"))
    flat: NDArray[np.uint8] = array.reshape(-1).view(np.uint8)
    return flat


def write(
    path: str | os.PathLike[str],
    sections: Mapping[str, Content],
    metadata: Mapping[str, str] | None,
    *,
    lossless: bool = False,
    base: str | os.PathLike[str] | None = None,
    original: bytes | None = None,
) -> None:
    """Write tensors to a file; see `save`. ``original`` is the header that `restore` gives back."""
    if metadata and KEY in metadata:
        raise ValueError(f"the key {KEY!r} of the metadata is taken")
    about: dict[str, Any] = {}
    if original is not None:
        about["header"] = base64.b64encode(zlib.compress(original, 9)).decode()
    with contextlib.nullcontext() if base is None else File(base) as older:
        if older is not None:
            about["base"] = {"name": _base_name(path, older), "sha256": older.digest()}
        with _files.replacing(path) as file:
            # Readers take at most 16 bytes of an original header for each byte of the header:
            # spaces make that long enough.
            least = -(-len(original or b"") // MOST_ORIGINAL)
            writing = _Writing(sections, metadata or {}, about, older, least)
            writing.run(file, lossless or older is not None)


def _base_name(path: str | os.PathLike[str], base: File) -> str:
    """Return the path of the base as seen from the target."""
    chain = [base]
    while (below := chain[-1].base) is not None:
        chain.append(below)
    if len(chain) > MOST_BASES:
        raise ValueError(
            f"the base already has a chain of {MOST_BASES} bases: save this file in full"
        )
    for each in chain:
        if os.path.exists(path) and os.path.samefile(path, each.path):
            raise ValueError(f"the target {os.fspath(path)!r} is a base of itself")
    folder = os.path.dirname(located(path))
    name = os.path.relpath(base.path, folder)
    if not is_base_name(name):
        raise ValueError(
            f"the base {base.path!r} is too far from {folder!r}: it may be in that folder, or in "
            f"one that at most {MOST_PARENTS} '..' lead to, by a name without backslashes"
        )
    return name


class _Writing:
    """A file being written: tensors first, then their positions.

    Codes are written as they are made, some blocks at a time; the checksum before them, and the
    header, for which enough room is left, are written at the end.
    """

    def __init__(
        self,
        sections: Mapping[str, Content],
        metadata: Mapping[str, str],
        about: Mapping[str, Any],
        base: File | None,
        least: int,
    ) -> None:
        self._sections, self._metadata, self._about = sections, metadata, about
        self._base, self._least = base, least
        self._codings: dict[str, str] = {}

    def run(self, target: BinaryIO, lossless: bool) -> None:
        """Write the whole file; raise a ValueError if a reader would refuse it."""
        if lossless:
            self._codings = {
                name: coding.CODINGS[
                    self._base is not None
                    and self._base.kind(name) == (section.dtype, section.shape)
                ]
                for name, section in self._sections.items()
                if section.about is None and section.dtype in coding.FORMATS and section.nbytes
            }
        ends = itertools.accumulate(section.nbytes for section in self._sections.values())
        places = {
            name: (end - section.nbytes, end)
            for end, (name, section) in zip(ends, self._sections.items(), strict=True)
        }
        header = self._header(places)
        try:
            if len(header) > MOST_HEADER:
                raise CorruptFileError(f"a header has at most {MOST_HEADER} bytes")
            parse(header)
        except CorruptFileError as error:
            raise ValueError(f"no reader would take such a file: {error}") from None
        if not self._codings:
            _write_header(target, header)
            for name in self._sections:
                self._write_plain(target, name)
        elif stat.S_ISREG(os.fstat(target.fileno()).st_mode):
            self._write_coded(target)
        else:
            with tempfile.TemporaryFile() as file:
                self._write_coded(file)
                file.seek(0)
                shutil.copyfileobj(file, target)

    def _header(self, places: Mapping[str, tuple[int, int]]) -> bytes:
        table: dict[str, Any] = {}
        entries: dict[str, Any] = {}
        for name, section in self._sections.items():
            begin, end = places[name]
            dtype, shape = section.dtype, section.shape
            if name in self._codings:
                fields = {"shape": shape, "dtype": coding.FORMATS[dtype]}
                table[name] = {**fields, "coding": self._codings[name]}
                dtype, shape = PACKED, (end - begin,)
            elif section.about is not None:
                table[name] = section.about
            entries[name] = {"dtype": dtype, "shape": shape, "data_offsets": [begin, end]}
        about = dict(self._metadata)
        if table or self._about:
            about[KEY] = json.dumps({"version": VERSION, "tensors": table, **self._about})
        header = json.dumps({"__metadata__": about, **entries} if about else entries).encode()
        header = header.ljust(self._least)
        return header + b" " * (-len(header) % 8)

    def _write_coded(self, file: BinaryIO) -> None:
        # No place has more digits.
        most = 10 * sum(section.nbytes for section in self._sections.values())
        room = len(self._header(dict.fromkeys(self._sections, (most, 2 * most))))
        _write_header(file, b" " * room)
        start, places = file.tell(), {}
        # Plain tensors first: after codes nothing is aligned.
        for name in sorted(self._sections, key=self._codings.__contains__):
            begin = file.tell()
            if name not in self._codings or not self._write_codes(file, name):
                self._codings.pop(name, None)  # its codes are not shorter
                file.seek(begin)
                self._write_plain(file, name)
            places[name] = (begin - start, file.tell() - start)
        file.truncate()
        file.seek(0)
        _write_header(file, self._header(places).ljust(room))

    def _write_plain(self, file: BinaryIO, name: str) -> None:
        data, nbytes = memoryview(self._sections[name].data()), self._sections[name].nbytes
        if data.nbytes != nbytes:
            raise ValueError(f"{name!r} had {nbytes} bytes, and has {data.nbytes} now")
        file.write(data)

    def _write_codes(self, file: BinaryIO, name: str) -> bool:
        """Write the codes of a tensor, unless they are as long as its bytes."""
        section, base = self._sections[name], None
        data = section.data()
        if len(data) != section.nbytes:
            return False
        if self._codings[name] == "difference":
            assert self._base is not None
            base = self._base.entries(name, forget=True)
        begin, check, length = file.tell(), 0, 4
        file.write(bytes(4))
        step = coding.PIECE * section.nbytes // math.prod(section.shape)
        coder = coding.Coder(section.dtype, base)
        for at in range(0, len(data), step):
            codes = coder.encode(data[at : at + step])
            check = _native.crc32c(codes, check)
            length += len(codes)
            if length >= len(data):
                return False
            file.write(codes.data)
        zeros = bytes(max(0, coding.least(len(data)) - length))
        check = _native.crc32c(zeros, check)
        file.write(zeros)
        end = file.tell()
        file.seek(begin)
        file.write(check.to_bytes(4, "little"))
        file.seek(end)
        return True


def restore(file: File, path: str | os.PathLike[str]) -> None:
    """Write the original of a losslessly coded file, byte for byte; see `File.original`."""
    header, sections = file.original()
    with _files.replacing(path) as target:
        _write_header(target, header)
        for name, section in sorted(sections.items(), key=lambda item: item[1].range):
            entries = file.entries(name, forget=True)
            nbytes = section.range[1] - section.range[0]
            step = coding.PIECE * max((bits_of(section.dtype) or 0) // 8, 1)
            buffer = np.empty(min(step, nbytes), np.uint8)
            for at in range(0, nbytes, step):
                piece = buffer[: min(step, nbytes - at)]
                entries.read(piece)
                target.write(piece.data)


def _write_header(file: BinaryIO, header: bytes) -> None:
    file.write(len(header).to_bytes(8, "little") + header)


def sections_of(file: File) -> dict[str, Content]:
    """Return what to write for the tensors of a file, none of them packed."""
    found = {}
    for name in file:
        dtype, shape = file.kind(name) or ("", ())
        data = file.data(name)
        found[name] = Content(dtype, shape, len(data), partial(np.frombuffer, data, np.uint8))
    return found
