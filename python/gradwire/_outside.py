"""Quantizers and index codings from other packages: calling them, and checking what they return.

The compiled codec calls an adapter of a part in each encode. A reader of a frame, the compiled one
too, looks the class up by the kind in the frame.
"""

import json
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from gradwire import _plugins
from gradwire._keys import rounding_key
from gradwire._part import Part
from gradwire.errors import CorruptFrameError, PluginError, UnsupportedFrameError
from gradwire.extension import IndexCoding, Quantizer

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = ["Positions", "Values", "read_positions", "read_values"]

T = TypeVar("T")

_QUANTIZER, _INDEX_CODING = "quantizer", "index coding"


class _Adapter:
    """A part of a codec, as the compiled codec calls it."""

    def __init__(self, part: Part, what: str) -> None:
        self.name = part.kind
        self.identity = json.dumps(part.get_config(), sort_keys=True)
        self._class = type(part)
        self._what = what

    def _run(self, method: str, call: Callable[[], T]) -> T:
        """Call a method of the part; whatever it raises is its own fault."""
        try:
            return call()
        except MemoryError:
            raise
        except _Unusable as error:
            raise self._error(f"{method} {error}") from error.__cause__
        except Exception as error:
            raise self._error(f"{method} raised {type(error).__name__}: {error}") from error

    def _error(self, reason: str) -> PluginError:
        return PluginError(self.name, self._class.__module__, reason, self._what)

    def _bound(self, value: object) -> int:
        if isinstance(value, bool) or not isinstance(value, int | np.integer) or value < 0:
            raise _Unusable(f"must return a number of bytes, got {value!r}")
        return int(value)

    def _bytes(self, code: Any, most: int) -> bytes:
        try:
            data = memoryview(code).tobytes()
        except TypeError:
            raise _Unusable(f"must return bytes, got {type(code).__name__}") from None
        if len(data) > most:
            raise _Unusable(f"must return at most max_len = {most} bytes, got {len(data)}")
        return data


class Values(_Adapter):
    """A quantizer."""

    def __init__(self, part: Quantizer) -> None:
        super().__init__(part, _QUANTIZER)
        self._part = part

    def max_len(self, count: int) -> int:
        """Return the bound of the part."""
        return self._run("max_len", lambda: self._bound(self._part.max_len(count)))

    def encode(
        self, values: "NDArray[np.float32]", step: int, name: str | None, stream: int
    ) -> "tuple[bytes, NDArray[np.float32]]":
        """Return the code of the values, and what a receiver makes of it."""
        values.flags.writeable = False
        most, key = self.max_len(values.size), rounding_key(name, step, stream)
        data = self._run(
            "encode", lambda: self._bytes(self._part.encode(values, step=step, key=key), most)
        )
        if 8 * len(data) < values.size:
            raise self._error(
                f"encode must return at least one bit per value, got {len(data)} bytes for "
                f"{values.size} values"
            )
        return data, self._run("decode", lambda: _values(type(self._part), data, values.size))


class Positions(_Adapter):
    """An index coding."""

    def __init__(self, part: IndexCoding) -> None:
        super().__init__(part, _INDEX_CODING)
        self._part = part

    def max_len(self, numel: int, count: int) -> int:
        """Return the bound of the part."""
        return self._run("max_len", lambda: self._bound(self._part.max_len(numel, count)))

    def encode(self, positions: "NDArray[np.uint32]", numel: int) -> bytes:
        """Return the code of the positions."""
        positions.flags.writeable = False
        most = self.max_len(numel, positions.size)
        data = self._run(
            "encode", lambda: self._bytes(self._part.encode(positions, numel=numel), most)
        )
        found = self._run(
            "decode", lambda: _positions(type(self._part), data, numel, positions.size)
        )
        if not np.array_equal(found, positions):
            raise self._error("decode returns other positions than encode was given")
        return data


def read_values(kind: str, data: bytes, count: int) -> "NDArray[np.float32]":
    """Return the values of a section that the quantizer of this kind has coded."""
    cls = _find(kind, Quantizer, _QUANTIZER)
    return _read(cls, _QUANTIZER, lambda: _values(cls, data, count))


def read_positions(kind: str, data: bytes, numel: int, count: int) -> "NDArray[np.uint32]":
    """Return the positions of a section that the index coding of this kind has coded."""
    cls = _find(kind, IndexCoding, _INDEX_CODING)
    return _read(cls, _INDEX_CODING, lambda: _positions(cls, data, numel, count))


P = TypeVar("P", bound=Part)


def _find(kind: str, base: type[P], what: str) -> type[P]:
    if kind not in base.KINDS:
        try:
            _plugins.search(kind, base.KINDS)
        except PluginError as error:  # of a distribution that need not be the sender's
            raise UnsupportedFrameError(what, kind) from error
    cls = base.KINDS.get(kind)
    if cls is None or not issubclass(cls, base):
        raise UnsupportedFrameError(what, kind)
    return cls


def _read(cls: type[Part], what: str, call: Callable[[], T]) -> T:
    """Have a class read bytes that anybody may have sent."""
    try:
        return call()
    except MemoryError:
        raise
    except _WrongType as error:
        raise PluginError(cls.kind, cls.__module__, f"decode {error}", what) from error
    except _Unusable as error:
        raise CorruptFrameError(f"{what} {cls.kind!r}: decode {error}") from error
    except Exception as error:
        raise CorruptFrameError(
            f"{what} {cls.kind!r} cannot read its section: {type(error).__name__}: {error}"
        ) from error


class _Unusable(Exception):
    """What a method has returned cannot be used."""


class _WrongType(_Unusable):
    """It could not be, whatever the data are."""


def _values(cls: type[Quantizer], data: bytes, count: int) -> "NDArray[np.float32]":
    values = cls.decode(data, count)
    if not isinstance(values, np.ndarray) or values.dtype != np.float32:
        raise _WrongType(f"must return an array of float32, got {_described(values)}")
    if values.shape != (count,):
        raise _Unusable(f"must return an array of shape ({count},), got {values.shape}")
    if not np.isfinite(values).all():
        raise _Unusable("must return finite values")
    return np.ascontiguousarray(values)


def _positions(cls: type[IndexCoding], data: bytes, numel: int, count: int) -> "NDArray[np.uint32]":
    positions = cls.decode(data, numel, count)
    if not isinstance(positions, np.ndarray) or positions.dtype.kind not in "iu":
        raise _WrongType(f"must return an array of integers, got {_described(positions)}")
    if positions.shape != (count,):
        raise _Unusable(f"must return an array of shape ({count},), got {positions.shape}")
    if count and not (positions.min() >= 0 and positions.max() < numel):
        raise _Unusable(
            f"must return positions in 0..{numel - 1}, got {positions.min()}..{positions.max()}"
        )
    if not (positions[1:] > positions[:-1]).all():
        raise _Unusable("must return positions that ascend strictly")
    return np.ascontiguousarray(positions, np.uint32)


def _described(value: object) -> str:
    return (
        f"{type(value).__name__} of {value.dtype}"
        if isinstance(value, np.ndarray)
        else (type(value).__name__)
    )
