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

PIECE = 16 << 16
"""Entries that are coded at a time: sixteen blocks, which threads share."""

_BLOCK = 1 << 16
_LEAST = 8
"""Bytes of the shortest block, with its length."""

_CHECKED = 8 << 20
"""Bytes whose checksum is taken at a time."""

Bytes = NDArray[np.uint8]


class Entries(Protocol):
    """The bytes of a tensor's entries, read from the first to the last."""

    def read(self, out: Bytes) -> None:
        """Read the next bytes: whole blocks of entries, except the last."""

    def end(self) -> None:
        """Raise an error if more bytes follow."""


class Plain:
    """Entries that a file holds uncoded; ``done`` is called after each read."""

    def __init__(self, data: memoryview, done: Callable[[], None]) -> None:
        self._data, self._at, self._done = np.frombuffer(data, np.uint8), 0, done

    def read(self, out: Bytes) -> None:
        """See `Entries`."""
        out[:] = self._data[self._at : self._at + len(out)]
        self._at += len(out)
        self._done()

    def end(self) -> None:
        """See `Entries`."""


class Coded:
    """Coded entries, after their CRC-32C; differences from those of ``base``, if given.

    Raises
    ------
    CorruptFileError
        The checksum does not match, or there are too few bytes for the shape.
    """

    def __init__(
        self,
        data: memoryview,
        name: str,
        dtype: str,
        shape: Sequence[int],
        base: Entries | None,
        done: Callable[[], None],
    ) -> None:
        blocks = -(-math.prod(shape) // _BLOCK)
        if len(data) < 4 + _LEAST * blocks:
            raise CorruptFileError(f"{len(data)} bytes do not hold {blocks} blocks of codes", name)
        check = 0
        for at in range(4, len(data), _CHECKED):
            check = _native.crc32c(data[at : at + _CHECKED], check)
            done()
        if int.from_bytes(data[:4], "little") != check:
            raise CorruptFileError("its checksum does not match its bytes", name)
        self._rest, self._name, self._base = data[4:], name, base
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

    def end(self) -> None:
        """See `Entries`."""
        if self._base is not None:
            self._base.end()
        if len(self._rest):
            raise CorruptFileError(f"{len(self._rest)} bytes follow its codes", self._name)


class Coder:
    """Codes a tensor piece by piece, reading its base alongside."""

    def __init__(self, dtype: str, base: Entries | None) -> None:
        self._format, self._base = FORMATS[dtype], base
        self._codes = self._other = np.empty(0, np.uint8)

    def encode(self, values: Bytes) -> Bytes:
        """Return codes of the next entries, in memory that the next call overwrites."""
        most = len(values) + 5 * (len(values) // _BLOCK + 1)
        if len(self._codes) < most:
            self._codes = np.empty(most, np.uint8)
        other = None
        if self._base is not None:
            if len(self._other) < len(values):
                self._other = np.empty_like(values)
            other = self._other[: len(values)]
            self._base.read(other)
        return self._codes[: _native.lossless_encode(self._format, values, self._codes, other)]
