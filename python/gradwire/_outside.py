"""Parts from other packages, written in Python: calling them, and checking what they return.

The compiled codec calls an adapter of a quantizer in each encode; a sparsifier selects before it. A
reader of a frame, the compiled one too, looks the quantizer up by the kind in the frame.
"""

import hashlib
import json
from collections.abc import Callable
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from gradwire import _native, _plugins, _validate
from gradwire.errors import CorruptFrameError, PluginError, UnsupportedFrameError
from gradwire.extension import Quantizer, Sparsifier
from gradwire.state import on_host

T = TypeVar("T")

QUANTIZER = "quantizer"  # what errors call it


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


class Values:
    """A quantizer, as the compiled codec calls it."""

    def __init__(self, part: Quantizer) -> None:
        bits = _validate.integer(f"{type(part).__name__}.bits", part.bits, low=1, high=1 << 16)
        self.name, self.bits = part.kind, bits
        self.identity = json.dumps(part.get_config(), sort_keys=True)
        self._part = part

    def encode(
        self, values: NDArray[np.float32], step: int, name: str | None, stream: int
    ) -> tuple[bytes, NDArray[np.float32]]:
        """Return the code of the values, and the values that a receiver decodes."""
        values.flags.writeable = False
        # Different on every rank, whose states have other streams.
        key = _seed(f"{stream} {step} {name or ''}", b"rounding")
        data = self._run("encode", lambda: self._bytes(values, step, key))
        return data, self._run("decode", lambda: _values(type(self._part), data, values.size))

    def _run(self, method: str, call: Callable[[], T]) -> T:
        """Call a method of the part, and attribute its exceptions to the part."""
        try:
            return call()
        except MemoryError:
            raise
        except Exception as error:
            reason = f"raised {type(error).__name__}: {error}"
            raise PluginError(
                self.name,
                type(self._part).__module__,
                f"{method} {error if isinstance(error, _Unusable) else reason}",
                QUANTIZER,
            ) from error

    def _bytes(self, values: NDArray[np.float32], step: int, key: int) -> bytes:
        code: Any = self._part.encode(values, step=step, key=key)
        try:
            data = memoryview(code).tobytes()
        except TypeError:
            raise _Unusable(f"must return bytes, got {type(code).__name__}") from None
        most = -(-values.size * self.bits // 8) + 64
        if not values.size <= 8 * len(data) <= 8 * most:
            raise _Unusable(
                f"must return 1 to {self.bits} bits per value, and 64 bytes: at most {most} bytes "
                f"for {values.size} values, got {len(data)}"
            )
        return data


def read_values(kind: str, data: bytes, count: int) -> NDArray[np.float32]:
    """Return the values that the quantizer of this kind, from another package, has coded."""
    kinds = Quantizer.KINDS
    if kind not in kinds:
        try:
            _plugins.search(kind, kinds)
        except PluginError as error:  # of a distribution that need not be the sender's
            raise UnsupportedFrameError(QUANTIZER, kind) from error
    cls = kinds.get(kind)
    if cls is None or not issubclass(cls, Quantizer):
        raise UnsupportedFrameError(QUANTIZER, kind)
    try:
        return _values(cls, data, count)
    except MemoryError:
        raise
    except _WrongType as error:
        raise PluginError(cls.kind, cls.__module__, f"decode {error}", QUANTIZER) from error
    except _Unusable as error:
        raise CorruptFrameError(f"quantizer {cls.kind!r}: decode {error}") from error
    except Exception as error:
        raise CorruptFrameError(
            f"quantizer {cls.kind!r} cannot read its section: {type(error).__name__}: {error}"
        ) from error


class _Unusable(Exception):
    """A method returned a value that cannot be used."""


class _WrongType(_Unusable):
    """Its type is wrong, so that the data cannot be at fault."""


def _values(cls: type[Quantizer], data: bytes, count: int) -> NDArray[np.float32]:
    values = cls.decode(data, count)
    if not isinstance(values, np.ndarray) or values.dtype != np.float32:
        name = type(values).__name__
        got = f"{name} of {values.dtype}" if isinstance(values, np.ndarray) else name
        raise _WrongType(f"must return an array of float32, got {got}")
    if values.shape != (count,):
        raise _Unusable(f"must return an array of shape ({count},), got {values.shape}")
    if not np.isfinite(values).all():
        raise _Unusable("must return finite values")
    return np.ascontiguousarray(values)
