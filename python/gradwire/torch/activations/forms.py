"""Packed forms of saved tensors: codes, a bit per entry, or nothing.

A form is made from the entries in memory order, and returns them in that order.
"""

import itertools
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray

from gradwire import _native
from gradwire._codec import Codec
from gradwire.errors import NonFiniteError
from gradwire.memory import NoMemory
from gradwire.quantize import Affine
from gradwire.sparsify import All
from gradwire.torch import cells


class Form(Protocol):
    """The entries of a tensor in a packed form."""

    @property
    def nbytes(self) -> int:
        """Bytes in packed form."""

    def values(self) -> torch.Tensor:
        """Return the entries, one-dimensional, in their original dtype."""


class Encoder:
    """Encodes values; no two tensors are rounded with the same random numbers.

    Parameters
    ----------
    bits, block, seed
        As of `Affine`, which rounds stochastically between the minimum and maximum of a block.
    stream : iterator of int
        Numbers the tensors; several encoders share one.
    """

    def __init__(self, bits: int, block: int, seed: int, stream: "itertools.count[int]") -> None:
        self.bits, self._block, self._seed, self._stream = bits, block, seed, stream
        affine = Affine(bits, block, "range", "stochastic", seed=seed)
        self._codec = Codec(sparsify=All(), quantize=affine, memory=NoMemory())

    def encode(self, flat: torch.Tensor) -> Form | None:
        """Return the codes of values; None if one of them is NaN or infinite.

        float32, float16 or bfloat16, contiguous. Uses the core's kernels on the CPU.
        """
        stream = next(self._stream)
        if not flat.is_cpu:
            return self.by_operators(flat, stream)
        state = self._codec.init_state(flat.numel(), stream=stream)
        frame = torch.empty(self._codec.max_encoded_len(flat.numel()), dtype=torch.uint8).numpy()
        array, bfloat16 = _shared(flat)
        try:
            self._codec._encode_into(array, state, frame, None, bfloat16)
        except NonFiniteError:
            return None
        return _Frame(frame, flat)

    def by_operators(self, flat: torch.Tensor, stream: int) -> Form | None:
        """Return the same codes, computed by torch's operators on the tensor's device."""
        key = cells.rounding_key(self._seed, stream)
        made = cells.encoded(flat, self.bits, self._block, key)
        if made is None:
            return None
        words, codes, exponent = made
        return _Codes(words, codes, (self.bits, self._block, exponent), flat)


class _Frame:
    """A frame of the core, in memory of torch."""

    __slots__ = ("__weakref__", "_dtype", "_frame", "_numel")

    def __init__(self, frame: NDArray[np.uint8], like: torch.Tensor) -> None:
        self._frame, self._numel, self._dtype = frame, like.numel(), like.dtype

    @property
    def nbytes(self) -> int:
        return self._frame.nbytes

    def values(self) -> torch.Tensor:
        narrow = self._dtype is torch.bfloat16
        out = torch.empty(self._numel, dtype=self._dtype if narrow else torch.float32)
        _native.packed_rows(self._frame, self._numel, 0, 1, _shared(out)[0])
        return out.to(self._dtype) if self._dtype is torch.float16 else out


def _shared(x: torch.Tensor) -> tuple[NDArray[Any], bool]:
    """Return an array that shares the memory of a tensor, and whether it has bfloat16 as uint16."""
    narrow = x.dtype is torch.bfloat16
    return (x.view(torch.uint16) if narrow else x).numpy(), narrow


class _Codes:
    """Steps, bases and codes on a device."""

    __slots__ = ("__weakref__", "_codes", "_dtype", "_grid", "_numel", "_words")

    def __init__(
        self,
        words: torch.Tensor,
        codes: torch.Tensor,
        grid: tuple[int, int, int],
        like: torch.Tensor,
    ) -> None:
        self._words, self._codes, self._grid = words, codes, grid
        self._numel, self._dtype = like.numel(), like.dtype

    @property
    def nbytes(self) -> int:
        return self._words.nbytes + self._codes.nbytes

    def values(self) -> torch.Tensor:
        return cells.decoded(self._words, self._codes, self._numel, self._grid, self._dtype)


class Bits:
    """A form for tensors of two values, one bit per entry.

    Parameters
    ----------
    chosen : torch.Tensor
        bool, of one dimension.
    values : tuple of float
        The values of entries that are not chosen, and of those that are.
    dtype : torch.dtype
        Of the values.
    """

    __slots__ = ("__weakref__", "_bits", "_dtype", "_numel", "_values")

    def __init__(
        self, chosen: torch.Tensor, values: tuple[float, float], dtype: torch.dtype
    ) -> None:
        self._numel, self._values, self._dtype = chosen.numel(), values, dtype
        if chosen.is_cpu:
            self._bits = torch.from_numpy(np.packbits(chosen.numpy(), bitorder="little"))
        else:
            self._bits = cells.packed(chosen.view(torch.uint8), 1)

    @property
    def nbytes(self) -> int:
        """Bytes in packed form."""
        return self._bits.nbytes

    def values(self) -> torch.Tensor:
        """Return the entries, one-dimensional."""
        if self._bits.is_cpu:
            array = np.unpackbits(self._bits.numpy(), count=self._numel, bitorder="little")
            bits = torch.from_numpy(array)
        else:
            bits = cells.unpacked(self._bits, self._numel, 1)
        if self._dtype is torch.bool:
            return bits.to(torch.bool)
        values, (least, largest) = bits.to(self._dtype), self._values
        return (
            values if (least, largest) == (0.0, 1.0) else values.mul_(largest - least).add_(least)
        )


class Shape:
    """A form with the number of entries only: backward does not read the values."""

    __slots__ = ("__weakref__", "_device", "_dtype", "_numel")
    nbytes = 0

    def __init__(self, like: torch.Tensor) -> None:
        self._numel, self._dtype, self._device = like.numel(), like.dtype, like.device

    def values(self) -> torch.Tensor:
        """Return the entries, one-dimensional."""
        return torch.empty(self._numel, dtype=self._dtype, device=self._device)
