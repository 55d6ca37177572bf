"""Losslessly coded tensors in files."""

import math
from collections.abc import Callable, Sequence
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from gradwire import _native
from gradwire.errors import CorruptFileError, CorruptFrameError, TruncatedFrameError

FORMATS = {"BF16": "bfloat16", "F16": "float16", "F32": "float32"}
"""The dtypes that are coded: their names in files, and those of the coder."""

CODINGS = ("lossless", "difference")

MOST_EXPANSION = 4096
"""Bytes of a decoded tensor for each byte of its codes: 1 MB of codes holds at most 4 GB."""

PIECE = 4 << 20
"""Entries that are coded at a time: 64 blocks of floats or 4 of differences, for threads."""

_BLOCK, _BLOCK_OF_DIFFERENCES = 1 << 16, 1 << 20

_CHECKED = 8 << 20
"""Bytes whose checksum is taken at a time."""

Bytes = NDArray[np.uint8]


def least(nbytes: int) -> int:
    """Return how many bytes the codes of a tensor of so many bytes have at least.

    Zeros follow shorter codes: otherwise 1 MB of codes could fill 30 GB of memory.
    """
    return -(-nbytes // MOST_EXPANSION)


class Entries(Protocol):
    """The bytes of a tensor's entries, read from the first to the last."""

    def read(self, out: Bytes) -> None:
        """Read the next bytes: whole blocks of entries, except the last."""


class Plain:
    """Entries that a file holds uncoded; ``done`` is called after each read."""

    def __init__(self, data: memoryview, done: Callable[[], None]) -> None:
        self._data, self._at, self._done = np.frombuffer(data, np.uint8), 0, done

    def read(self, out: Bytes) -> None:
        """See `Entries`."""
        out[:] = self._data[self._at : self._at + len(out)]
        self._at += len(out)
        self._done()


class Coded:
    """Coded entries, after their CRC-32C; differences from those of ``base``, if given."""

    def __init__(
        self,
        data: memoryview,
        name: str,
        dtype: str,
        shape: Sequence[int],
        base: Entries | None,
        done: Callable[[], None],
    ) -> None:
        numel = math.prod(shape)
        block = _BLOCK if base is None else _BLOCK_OF_DIFFERENCES
        end = _end_of_blocks(data, -(-numel // block), name, done)
        need = max(end, least(numel * (4 if dtype == "F32" else 2)))
        if len(data) != need or data[end:].tobytes().strip(b"\0"):
            raise CorruptFileError(f"{len(data) - end} bytes follow its codes", name)
        check = 0
        for at in range(4, len(data), _CHECKED):
            check = _native.crc32c(data[at : at + _CHECKED], check)
            done()
        if int.from_bytes(data[:4], "little") != check:
            raise CorruptFileError("its checksum does not match its bytes", name)
        self._rest, self._name, self._base = data[4:end], name, base
        self._format, self._done = FORMATS[dtype], done

    def read(self, out: Bytes) -> None:
        """See `Entries`."""
        if self._base is not None:
            self._base.read(out)
        try:
            used = _native.lossless_decode(self._format, self._rest, out, self._base is not None)
        except (CorruptFrameError, TruncatedFrameError) as error:
            raise CorruptFileError(str(error), self._name) from None
        self._rest = self._rest[used:]
        self._done()


def _end_of_blocks(data: memoryview, count: int, name: str, done: Callable[[], None]) -> int:
    """Return where so many blocks end: before memory is taken for the entries."""
    at = 4
    for block in range(count):
        if block % 64 == 63:  # the system reads pages around each length
            done()
        length = int.from_bytes(data[at : at + 4], "little")
        at += 4 + length
        if at > len(data) or length == 0:
            raise CorruptFileError(f"{len(data)} bytes do not hold its {count} blocks", name)
    return at


class Coder:
    """Codes a tensor piece by piece, reading its base alongside."""

    def __init__(self, dtype: str, base: Entries | None) -> None:
        self._format, self._base = FORMATS[dtype], base
        self._codes = self._other = np.empty(0, np.uint8)

    def encode(self, values: Bytes) -> Bytes:
        """Return codes of the next entries, in memory that the next call overwrites."""
        most = len(values) + 5 * (len(values) // _BLOCK + 2)
        if len(self._codes) < most:
            self._codes = np.empty(most, np.uint8)
        other = None
        if self._base is not None:
            if len(self._other) < len(values):
                self._other = np.empty_like(values)
            other = self._other[: len(values)]
            self._base.read(other)
        return self._codes[: _native.lossless_encode(self._format, values, self._codes, other)]
