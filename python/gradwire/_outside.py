"""Parts from other packages, written in Python: calling them, and checking what they return.

The compiled codec calls an adapter of a quantizer in each encode; a sparsifier selects before it. A
reader of a frame, the compiled one too, looks the quantizer up by the kind in the frame.
"""

import contextlib
import hashlib
import json
from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gradwire import _native, _plugins, _validate
from gradwire._validate import require
from gradwire.errors import CorruptFrameError, PluginError, UnsupportedFrameError
from gradwire.extension import Quantizer, Sparsifier
from gradwire.state import on_host

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
        self, x: NDArray[Any], state: Any, max_nbytes: int | None, bfloat16: bool, undo: list[Any]
    ) -> _native.Frame:
        positions = self.positions(x, state, bfloat16)
        return self._codec.encode_at(x, state, positions, max_nbytes, bfloat16, True, undo)

    def encode_into(
        self,
        x: NDArray[Any],
        state: Any,
        out: Any,
        max_nbytes: int | None,
        bfloat16: bool,
        undo: list[Any],
    ) -> int:
        positions = self.positions(x, state, bfloat16)
        return self._codec.encode_at_into(
            x, state, positions, out, max_nbytes, bfloat16, True, undo
        )

    def max_encoded_len(self, numel: int) -> int:
        count = self._sparsify.max_count(numel)
        return self._codec.max_encoded_len(numel, min(max(count, 0), numel))

    def positions(self, x: NDArray[Any], state: Any, bfloat16: bool = False) -> NDArray[np.uint32]:
        values = self._codec.preview(x, on_host(state), bfloat16)
        values.flags.writeable = False
        step, name = (0, None) if state is None else (state.step, state.name)
        key = _seed(f"{step} {name or ''}", b"")  # the same on every rank
        positions = np.asarray(self._sparsify.select(values, step=step, key=key))
        what, count = f"{type(self._sparsify).__name__}.select", positions.size
        require(
            positions.ndim == 1 and (not count or positions.dtype.kind in "iu"),
            "{} must return integers of shape (count,), got {} of shape {}",
            *(what, positions.dtype, positions.shape),
            kind=TypeError,
        )
        low, high = (positions.min(), positions.max()) if count else (0, -1)
        message = "{} must return positions in 0..{}, got {}..{}"
        require(low >= 0 and high < values.size, message, what, values.size - 1, low, high)
        most = self._sparsify.max_count(values.size)
        message = "{} must return at most max_count = {} positions, got {}"
        require(count <= most, message, what, most, count)
        return np.ascontiguousarray(positions, np.uint32)


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
        values.flags.writeable = False
        # Different on every rank, whose states have other streams.
        key = _seed(f"{stream} {step} {name or ''}", b"rounding")
        kind = type(self._part)
        with _blame(kind, "encode"):
            data = self._bytes(values, step, key)
        with _blame(kind, "decode"):
            return data, _values(kind, data, values.size)

    def _bytes(self, values: NDArray[np.float32], step: int, key: int) -> bytes:
        code: Any = self._part.encode(values, step=step, key=key)
        try:
            data = memoryview(code).tobytes()
        except TypeError:
            raise _Unusable(f"must return bytes, got {type(code).__name__}") from None
        most = -(-values.size * self.bits // 8) + 64
        require(
            values.size <= 8 * len(data) <= 8 * most,
            "must return 1 to {} bits per value, and 64 bytes: at most {} bytes for {} values, got "
            "{}",
            *(self.bits, most, values.size, len(data)),
            kind=_Unusable,
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
    with _blame(cls, "decode", reading=True):
        return _values(cls, data, count)


class _Unusable(Exception):
    """What a method returned cannot be used; no data is at fault if its type is wrong."""

    def __init__(self, words: str, *, wrong_type: bool = False) -> None:
        super().__init__(words)
        self.wrong_type = wrong_type


@contextlib.contextmanager
def _blame(cls: type[Quantizer], method: str, *, reading: bool = False) -> Iterator[None]:
    """Attribute exceptions of a method to its part, or where a frame is read, to the frame."""
    try:
        yield
    except MemoryError:
        raise
    except Exception as error:
        unusable = isinstance(error, _Unusable)
        words = f"{method} {error if unusable else f'raised {type(error).__name__}: {error}'}"
        if reading and not (isinstance(error, _Unusable) and error.wrong_type):
            raise CorruptFrameError(f"quantizer {cls.kind!r}: {words}") from error
        raise PluginError(cls.kind, cls.__module__, words, QUANTIZER) from error


def _values(cls: type[Quantizer], data: bytes, count: int) -> NDArray[np.float32]:
    values = cls.decode(data, count)
    if not isinstance(values, np.ndarray) or values.dtype != np.float32:
        name = type(values).__name__
        shown = f"{name} of {values.dtype}" if isinstance(values, np.ndarray) else name
        raise _Unusable(f"must return an array of float32, got {shown}", wrong_type=True)
    shape = values.shape
    right, message = shape == (count,), "must return an array of shape ({},), got {}"
    require(right, message, count, shape, kind=_Unusable)
    require(np.isfinite(values).all(), "must return finite values", kind=_Unusable)
    return np.ascontiguousarray(values)
