"""Packed forms of saved tensors: codes, codes by group, a bit per entry, or nothing.

A form is made from the entries in memory order, and returns them in that order.
"""

import itertools
import math
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray

from gradwire import _native
from gradwire._codec import Codec
from gradwire.memory import NoMemory
from gradwire.quantize import Affine
from gradwire.sparsify import All
from gradwire.torch import cells
from gradwire.torch.backends.cpu import array_of

_MOST = 2.0**118
"""Above, the steps of blocks exceed what a frame holds, and codes would be clipped."""

_OFFSET, _SPREAD = 32.0, 1e6
"""Steps and bases have 11 bits: so far from zero, in widths of a group, they are too coarse for it;
and groups may differ by so much within a frame."""


class Form(Protocol):
    """The entries of a tensor in a packed form, of `nbytes`."""

    @property
    def nbytes(self) -> int:
        """Bytes in packed form."""

    def values(self) -> torch.Tensor:
        """Return the entries, one-dimensional, in their original dtype."""


class Encoder:
    """Encodes values, rounded stochastically between the minimum and maximum of a block.

    ``stream``, which several encoders share, numbers the tensors: no two are rounded with the same
    random numbers.
    """

    def __init__(self, bits: int, block: int, seed: int, stream: "itertools.count[int]") -> None:
        self.bits, self.block, self._seed, self._stream = bits, block, seed, stream
        affine = Affine(bits, block, "range", "stochastic", seed=seed)
        self._codec = Codec(sparsify=All(), quantize=affine, memory=NoMemory())

    def encode(self, flat: torch.Tensor) -> Form | str:
        """Return the codes of values, or the reason why they have none.

        float32, float16 or bfloat16, contiguous. Uses the core's kernels on the CPU.
        """
        peak, stream = peak_of(flat), next(self._stream)
        if not math.isfinite(peak):
            return "NaN or infinity"
        if peak > _MOST:
            return "values above 3.3e35"
        if not flat.is_cpu:
            return self.by_operators(flat, peak, stream)
        state = self._codec.init_state(flat.numel(), stream=stream)
        frame = torch.empty(self._codec.max_encoded_len(flat.numel()), dtype=torch.uint8).numpy()
        bfloat16 = flat.dtype is torch.bfloat16
        self._codec._encode_into(array_of(flat), state, frame, None, bfloat16)
        return _Frame(frame, flat)

    def by_operators(self, flat: torch.Tensor, peak: float, stream: int) -> Form:
        """Return the same codes, computed by torch's operators on the tensor's device."""
        key = cells.rounding_key(self._seed, stream)
        words, codes, exponent = cells.encoded(flat, peak, self.bits, self.block, key)
        return _Codes(words, codes, (self.bits, self.block, exponent), flat)


def peak_of(x: torch.Tensor) -> float:
    # Some devices have no aminmax.
    low, high = x.aminmax() if x.is_cpu else (x.amin(), x.amax())
    return float(torch.maximum(-low, high))


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
        _native.packed_rows(self._frame, self._numel, 0, 1, array_of(out))
        return out.to(self._dtype) if self._dtype is torch.float16 else out


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
    """A form for tensors of two values: that of entries that are not chosen, and of the others."""

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
        return self._bits.nbytes

    def chosen(self) -> torch.Tensor:
        return self._unpacked().to(torch.bool)

    def values(self) -> torch.Tensor:
        if self._dtype is torch.bool:
            return self.chosen()
        return look_up(torch.tensor(self._values, dtype=self._dtype), self._unpacked())

    def _unpacked(self) -> torch.Tensor:
        if self._bits.is_cpu:
            array = np.unpackbits(self._bits.numpy(), count=self._numel, bitorder="little")
            return torch.from_numpy(array)
        return cells.unpacked(self._bits, self._numel, 1)


def look_up(table: torch.Tensor, at: torch.Tensor) -> torch.Tensor:
    """Return the entries of a small table, which is on the CPU, at positions on any device."""
    if not at.is_cpu:
        return table.to(at.device)[at.to(torch.int64)]
    return torch.from_numpy(array_of(table).take(at.numpy())).view(table.dtype)


class Groups:
    """Codes of a norm's input, of shape (groups, entries of a group).

    All entries of a group have one mean and deviation, by which backward divides. Blocks that hold
    several groups, as of channels with values near 0.01 and near 100, or groups whose values are
    far from zero, are coded on their own scale each.
    """

    __slots__ = ("__weakref__", "_codes", "_dtype", "_first", "_scale", "_shape", "_stride")

    def __init__(
        self,
        codes: Form,
        scale: tuple[torch.Tensor, torch.Tensor] | None,
        x: torch.Tensor,
        first: bool,
    ) -> None:
        self._codes, self._scale, self._first = codes, scale, first
        self._shape, self._stride, self._dtype = x.shape, x.stride(), x.dtype

    @classmethod
    def of(cls, x: torch.Tensor, entries: int, first: bool, encoder: Encoder) -> "Form | str":
        """Return the form of a tensor without gaps, or the reason why there is none.

        Groups are runs of entries; or, with `first`, of channels, the second dimension.
        """
        rows = (x.transpose(0, 1) if first else x).reshape(-1, entries)
        low, high = (bound.to(torch.float32)[:, None] / 2 for bound in (rows.amin(1), rows.amax(1)))
        centre, half = low + high, high - low
        peak = torch.maximum(low.abs(), high.abs()).amax()
        if (
            entries % encoder.block == 0
            and (centre.abs() <= _OFFSET * half).all()
            and peak <= _SPREAD * half.amin()
        ):
            codes, scale = encoder.encode(rows.reshape(-1)), None
        else:
            z = (rows.to(torch.float32) - centre).div_(half.clamp_min(1e-37))
            codes, scale = encoder.encode(z.reshape(-1)), (centre, half)
        return codes if isinstance(codes, str) else cls(codes, scale, x, first)

    @property
    def nbytes(self) -> int:
        return self._codes.nbytes + sum(part.nbytes for part in self._scale or ())

    def values(self) -> torch.Tensor:
        values, shape = self._codes.values(), self._shape
        if self._scale is not None:
            centre, half = self._scale
            values = values.view(len(half), -1).mul_(half).add_(centre)
        if self._first:
            values = values.view(shape[1], shape[0], *shape[2:]).transpose(0, 1)
        out = torch.empty_strided(shape, self._stride, dtype=self._dtype, device=values.device)
        return out.copy_(values.view(shape) if not self._first else values).as_strided(
            (out.numel(),), (1,)
        )


class Shape:
    """A form with the number of entries only: backward does not read the values."""

    __slots__ = ("__weakref__", "_device", "_dtype", "_numel")
    nbytes = 0

    def __init__(self, like: torch.Tensor) -> None:
        self._numel, self._dtype, self._device = like.numel(), like.dtype, like.device

    def values(self) -> torch.Tensor:
        return torch.empty(self._numel, dtype=self._dtype, device=self._device)
