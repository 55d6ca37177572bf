"""Encoding with a sparsifier written in Python."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from gradwire import _native, extension
from gradwire._keys import selection_key
from gradwire.state import held_on_host

__all__ = ["Selecting"]


class Selecting:
    """A wrapper of a compiled codec that selects the positions in Python before each encode."""

    def __init__(self, codec: _native.Codec, sparsify: extension.Sparsifier) -> None:
        self._codec = codec
        self._sparsify = sparsify

    def encode(
        self,
        x: NDArray[Any],
        state: Any = None,
        max_nbytes: int | None = None,
        bfloat16: bool = False,
        kept: list[Any] | None = None,
    ) -> _native.Frame:
        """Encode like the compiled codec."""
        positions = self.positions(x, state, bfloat16)
        return self._codec.encode_at(x, state, positions, max_nbytes, bfloat16, True, kept)

    def encode_into(
        self,
        x: NDArray[Any],
        state: Any,
        out: Any,
        max_nbytes: int | None = None,
        bfloat16: bool = False,
        kept: list[Any] | None = None,
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
        values = self._codec.preview(x, held_on_host(state), bfloat16)
        values.flags.writeable = False
        step, name = (0, None) if state is None else (state.step, state.name)
        chosen = np.asarray(self._sparsify.select(values, step=step, key=selection_key(name, step)))
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
