"""Parts from other packages, written in Python: calling them, and checking what they return.

The compiled codec calls an adapter of a quantizer or an index coding in each encode; a sparsifier
selects before it. A reader of a frame, the compiled one too, looks the class up by the kind in the
frame.
"""

import hashlib
import json
from collections.abc import Callable
from typing import Any, ClassVar, Generic, TypeVar

import numpy as np
from numpy.typing import NDArray

from gradwire import _native, _plugins
from gradwire._part import Part
from gradwire.errors import CorruptFrameError, PluginError, UnsupportedFrameError
from gradwire.extension import IndexCoding, Quantizer, Sparsifier
from gradwire.state import on_host

T = TypeVar("T")
P = TypeVar("P", bound=Part)


def _seed(text: str, person: bytes) -> int:
    digest = hashlib.blake2b(text.encode(), digest_size=8, person=person).digest()
    return int.from_bytes(digest, "little")


class SelectingCodec:
    """A wrapper of a compiled codec that selects the positions in Python before each encode."""

    def __init__(self, codec: _native.Codec, sparsify: Sparsifier) -> None:
        self._codec = codec
        self._sparsify = sparsify

    def encode(
        self, x: NDArray[Any], state: Any, max_nbytes: int | None, bfloat16: bool, kept: list[Any]
    ) -> _native.Frame:
        """Encode like the compiled codec."""
        positions = self.positions(x, state, bfloat16)
        return self._codec.encode_at(x, state, positions, max_nbytes, bfloat16, True, kept)

    def encode_into(
        self,
        x: NDArray[Any],
        state: Any,
        out: Any,
        max_nbytes: int | None,
        bfloat16: bool,
        kept: list[Any],
    ) -> int:
        """Encode into a buffer like the compiled codec."""
        positions = self.positions(x, state, bfloat16)
        return self._codec.encode_at_into(
            x, state, positions, out, max_nbytes, bfloat16, True, kept
        )

    def max_encoded_len(self, numel: int) -> int:
        """Return the size in bytes that no frame exceeds."""
        count = self._sparsify.max_count(numel)
        return self._codec.max_encoded_len(numel, min(max(count, 0), numel))

    def positions(self, x: NDArray[Any], state: Any, bfloat16: bool = False) -> NDArray[np.uint32]:
        """Return the positions that the sparsifier selects, after checking them."""
        values = self._codec.preview(x, on_host(state), bfloat16)
        values.flags.writeable = False
        step, name = (0, None) if state is None else (state.step, state.name)
        key = _seed(f"{step} {name or ''}", b"")  # the same on every rank
        chosen = np.asarray(self._sparsify.select(values, step=step, key=key))
        what = f"{type(self._sparsify).__name__}.select"
        if chosen.ndim != 1 or (chosen.size and chosen.dtype.kind not in "iu"):
            raise TypeError(
                f"{what} must return integers of shape (count,), got {chosen.dtype} of shape "
                f"{chosen.shape}"
            )
        if chosen.size and not (chosen.min() >= 0 and chosen.max() < values.size):
            raise ValueError(
                f"{what} must return positions in 0..{values.size - 1}, got "
                f"{chosen.min()}..{chosen.max()}"
            )
        most = self._sparsify.max_count(values.size)
        if chosen.size > most:
            raise ValueError(
                f"{what} must return at most max_count = {most} positions, got {chosen.size}"
            )
        return np.ascontiguousarray(chosen, np.uint32)


class _Adapter(Generic[P]):
    """A part of a codec, as the compiled codec calls it."""

    what: ClassVar[str]

    def __init__(self, part: P) -> None:
        self.name = part.kind
        self.identity = json.dumps(part.get_config(), sort_keys=True)
        self._part = part

    def _run(self, method: str, call: Callable[[], T]) -> T:
        """Call a method of the part, and attribute its exceptions to the part."""
        try:
            return call()
        except MemoryError:
            raise
        except _Unusable as error:
            raise self._error(f"{method} {error}") from error.__cause__
        except Exception as error:
            raise self._error(f"{method} raised {type(error).__name__}: {error}") from error

    def _error(self, reason: str) -> PluginError:
        return PluginError(self.name, type(self._part).__module__, reason, self.what)

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


class Values(_Adapter[Quantizer]):
    """A quantizer."""

    what = "quantizer"

    def max_len(self, count: int) -> int:
        """Return the bound of the part."""
        return self._run("max_len", lambda: self._bound(self._part.max_len(count)))

    def encode(
        self, values: NDArray[np.float32], step: int, name: str | None, stream: int
    ) -> tuple[bytes, NDArray[np.float32]]:
        """Return the code of the values, and the values that a receiver decodes."""
        values.flags.writeable = False
        most = self.max_len(values.size)
        # Different on every rank, whose states have other streams.
        key = _seed(f"{stream} {step} {name or ''}", b"rounding")
        data = self._run(
            "encode", lambda: self._bytes(self._part.encode(values, step=step, key=key), most)
        )
        if 8 * len(data) < values.size:
            raise self._error(
                f"encode must return at least one bit per value, got {len(data)} bytes for "
                f"{values.size} values"
            )
        return data, self._run("decode", lambda: _values(type(self._part), data, values.size))


class Positions(_Adapter[IndexCoding]):
    """An index coding."""

    what = "index coding"

    def max_len(self, numel: int, count: int) -> int:
        """Return the bound of the part."""
        return self._run("max_len", lambda: self._bound(self._part.max_len(numel, count)))

    def encode(self, positions: NDArray[np.uint32], numel: int) -> bytes:
        """Return the code of the positions."""
        positions.flags.writeable = False
        cls, count = type(self._part), positions.size
        most = self.max_len(numel, count)
        data = self._run(
            "encode", lambda: self._bytes(self._part.encode(positions, numel=numel), most)
        )
        found = self._run("decode", lambda: _positions(cls, data, numel, count))
        if not np.array_equal(found, positions):
            raise self._error("decode returned different positions from those given to encode")
        return data


def read_values(kind: str, data: bytes, count: int) -> NDArray[np.float32]:
    """Return the values of a section that the quantizer of this kind has coded."""
    return _read(kind, Quantizer, Values.what, lambda cls: _values(cls, data, count))


def read_positions(kind: str, data: bytes, numel: int, count: int) -> NDArray[np.uint32]:
    """Return the positions of a section that the index coding of this kind has coded."""
    return _read(kind, IndexCoding, Positions.what, lambda cls: _positions(cls, data, numel, count))


def _read(kind: str, base: type[P], what: str, decode: Callable[[type[P]], T]) -> T:
    """Decode untrusted bytes with the class, from another package, whose kind they name."""
    if kind not in base.KINDS:
        try:
            _plugins.search(kind, base.KINDS)
        except PluginError as error:  # of a distribution that need not be the sender's
            raise UnsupportedFrameError(what, kind) from error
    cls = base.KINDS.get(kind)
    if cls is None or not issubclass(cls, base):
        raise UnsupportedFrameError(what, kind)
    try:
        return decode(cls)
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
    """A method returned a value that cannot be used."""


class _WrongType(_Unusable):
    """Its type is wrong, so that the data cannot be at fault."""


def _values(cls: type[Quantizer], data: bytes, count: int) -> NDArray[np.float32]:
    values = cls.decode(data, count)
    if not isinstance(values, np.ndarray) or values.dtype != np.float32:
        raise _WrongType(f"must return an array of float32, got {_described(values)}")
    if values.shape != (count,):
        raise _Unusable(f"must return an array of shape ({count},), got {values.shape}")
    if not np.isfinite(values).all():
        raise _Unusable("must return finite values")
    return np.ascontiguousarray(values)


def _positions(cls: type[IndexCoding], data: bytes, numel: int, count: int) -> NDArray[np.uint32]:
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
        raise _Unusable("must return strictly ascending positions")
    return np.ascontiguousarray(positions, np.uint32)


def _described(value: object) -> str:
    name = type(value).__name__
    return f"{name} of {value.dtype}" if isinstance(value, np.ndarray) else name
