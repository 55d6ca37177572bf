"""The tensors of a model as bytes, and the pieces of them that are coded at a time."""

import importlib
import sys
from collections.abc import Iterator, Mapping
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from gradwire.weights import RawTensor
from gradwire.weights.header import name_of

_BLOCK = 1 << 20
"""Entries of a block."""

_FORMATS = {"BF16": ("bfloat16", 2), "F16": ("float16", 2), "F32": ("float32", 4)}
_BYTES = ("bytes", 1)
"""Formats of entries, and the bytes of one; all other dtypes are bytes."""

_ROOM = 8 << 20
"""Bytes that are gathered from several tensors, or from a device, at a time."""

Data = NDArray[np.uint8]


class Remote:
    """A tensor whose bytes are not in this process's memory, or not all of them."""

    dtype: str
    shape: tuple[int, ...]
    nbytes: int
    place: tuple[str, int]
    """The device, and the address there."""

    def buffer(self, nbytes: int) -> Data:
        """Return memory that is fast to copy to and from."""
        return np.empty(nbytes, np.uint8)

    def read(self, start: int, out: Data) -> None:
        """Read bytes from a position on."""
        raise NotImplementedError

    def write(self, start: int, data: Data) -> None:
        """Write bytes from a position on."""
        raise TypeError("a file is not written to")


Tensors: TypeAlias = dict[str, RawTensor | Remote]
Piece = list[tuple[str, int, int]]
"""Names, and the first and the last byte of each, exclusive."""


def tensors_of(model: Any) -> Tensors:
    """Return the tensors of a model by name, in the order of names; arrays share its memory.

    Raises a TypeError for what is no tensor, and a ValueError for one that is not contiguous.
    """
    if callable(state := getattr(model, "state_dict", None)):
        model = state()
    named = model if isinstance(model, Mapping) else {"": model}
    if strange := [name for name in named if not isinstance(name, str)]:
        raise TypeError(f"names must be strings, got {strange[0]!r:.100}")
    return {name: _tensor(name, named[name]) for name in sorted(named)}


def _tensor(name: str, value: Any) -> Any:
    if isinstance(value, RawTensor | Remote):
        return value
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(value, getattr(torch, "Tensor", ())):
        return importlib.import_module("gradwire.torch.delta").bytes_of(value, name)
    masked = isinstance(value, np.ma.MaskedArray)
    dtype = None if masked or not isinstance(value, np.ndarray) else name_of(value.dtype)
    if dtype is None:
        about = getattr(value, "dtype", type(value).__name__)
        raise TypeError(f"{name!r} must be an array of numbers, or a tensor, got {about}")
    if not value.flags.c_contiguous or value.dtype != value.dtype.newbyteorder("<"):
        raise ValueError(f"{name!r} is not contiguous, or big-endian: give a copy that is neither")
    return RawTensor(dtype, value.shape, value.reshape(-1).view(np.uint8))


def distinct(tensors: Tensors) -> Tensors:
    """Leave out names of tensors that have one before: tied ones.

    Raises a ValueError if tensors share memory otherwise.
    """
    found, end = dict(tensors), ("", 0)
    last: RawTensor | Remote | None = None
    for name, tensor in sorted(tensors.items(), key=lambda item: (_place(item[1]), item[0])):
        device, start = _place(tensor)
        if not tensor.nbytes:
            continue
        if last is not None and (device, start) == _place(last) and _kind(tensor) == _kind(last):
            del found[name]
            continue
        if device == end[0] and start < end[1]:
            raise ValueError(f"{name!r} shares memory with another tensor: give a copy of it")
        last, end = tensor, (device, start + tensor.nbytes)
    return found


def _place(tensor: RawTensor | Remote) -> tuple[str, int]:
    if isinstance(tensor, RawTensor):
        return "", int(tensor.data.__array_interface__["data"][0])
    return tensor.place


def _kind(tensor: RawTensor | Remote) -> tuple[str, tuple[int, ...]]:
    return tensor.dtype, tuple(tensor.shape)


def kinds(tensors: Tensors) -> list[list[Any]]:
    """Return name, dtype and shape of each tensor, as a patch describes them."""
    return [[name, tensor.dtype, [*tensor.shape]] for name, tensor in sorted(tensors.items())]


def check_kinds(tensors: Tensors, others: Tensors) -> None:
    """Raise a ValueError unless two models have tensors of the same kinds."""
    mine, theirs = kinds(tensors), kinds(others)
    if different := [each for each in mine + theirs if each not in mine or each not in theirs]:
        raise ValueError(
            f"{len(different)} names, dtypes or shapes are not in both models, as {different[0]}"
        )


def pieces(tensors: Tensors, *others: Tensors) -> Iterator[tuple[str, Piece]]:
    """Yield the format and the bytes of pieces: whole blocks, but for the last of each format.

    Blocks go across tensors. Whole blocks of a tensor that is in memory here, and in the others,
    are one piece.
    """
    for entries in (*_FORMATS.values(), _BYTES):
        piece: Piece = []
        size, block = 0, _BLOCK * entries[1]
        for name, tensor in tensors.items():
            if _FORMATS.get(tensor.dtype, _BYTES) != entries:
                continue
            here = all(isinstance(each[name], RawTensor) for each in (tensors, *others))
            start, end = 0, tensor.nbytes
            while start < end:
                whole = (end - start) // block * block if here and not size % block else 0
                if piece and (whole or size == _ROOM):
                    yield entries[0], piece
                    piece, size = [], 0
                stop = start + (whole or min(end - start, block - size % block))
                if whole:
                    yield entries[0], [(name, start, stop)]
                else:
                    piece.append((name, start, stop))
                    size += stop - start
                start = stop
        if piece:
            yield entries[0], piece


class Buffer:
    """Memory for one piece at a time of some tensors."""

    def __init__(self, tensors: Tensors) -> None:
        self._tensors, self._memory = tensors, np.empty(0, np.uint8)

    def gather(self, piece: Piece) -> Data:
        """Return the bytes of a piece: the tensor's own memory if they are in one place."""
        name, first, last = piece[0]
        tensor = self._tensors[name]
        if len(piece) == 1 and isinstance(tensor, RawTensor):
            return tensor.data[first:last]
        nbytes = sum(stop - start for _, start, stop in piece)
        if nbytes > len(self._memory):
            remote = [each for each in self._tensors.values() if not isinstance(each, RawTensor)]
            self._memory = remote[0].buffer(_ROOM) if remote else np.empty(_ROOM, np.uint8)
        data = self._memory[:nbytes]
        for tensor, start, part in self._parts(piece, data):
            if isinstance(tensor, RawTensor):
                part[:] = tensor.data[start : start + len(part)]
            else:
                tensor.read(start, part)
        return data

    def scatter(self, piece: Piece, data: Data) -> None:
        """Write the bytes of a piece, unless they are the tensor's own memory."""
        for tensor, start, part in self._parts(piece, data):
            if not isinstance(tensor, RawTensor):
                tensor.write(start, part)
            elif not np.may_share_memory(there := tensor.data[start : start + len(part)], part):
                there[:] = part

    def _parts(self, piece: Piece, data: Data) -> Iterator[tuple[RawTensor | Remote, int, Data]]:
        at = 0
        for name, start, stop in piece:
            yield self._tensors[name], start, data[at : at + stop - start]
            at += stop - start


def copy(source: Tensors, target: Tensors) -> None:
    """Write the bytes of tensors to others of the same kinds."""
    reading, writing = Buffer(source), Buffer(target)
    for _, piece in pieces(target, source):
        writing.scatter(piece, reading.gather(piece))
