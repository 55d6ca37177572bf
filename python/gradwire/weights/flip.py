"""Bit errors in packed tensors, as memory at a low voltage makes them."""

import math
from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

from gradwire import _native, _validate
from gradwire._validate import MAX_NUMEL
from gradwire.frame import Frame
from gradwire.weights.packed import Packed

_GRIDS, _EXPONENT = 56, slice(10, 12)
_CHUNK = 1 << 16  # weights at a time; a multiple of 8, so that their codes end on a byte


def flip(packed: Packed, rate: float, seed: int = 0, planes: Iterable[int] | None = None) -> Packed:
    """Return a tensor with random bit flips in its codes.

    Each bit has a random number u, uniform in (0, 1] and determined by the seed, and is flipped if
    ``u <= rate``: a bit flipped at one rate is flipped at every larger one. Steps and bases are
    unchanged, as if they were in memory without errors.

    Parameters
    ----------
    packed : Packed
        The tensor; it is not changed.
    rate : float
        The probability that a bit is flipped, 0 to 1.
    seed : int
        Number of the error pattern, from 0; the same on every machine.
    planes : iterable of int, optional
        Which bits of a code may be flipped, 0 the lowest; all by default. The numbers u of these do
        not depend on the others.

    Returns
    -------
    Packed
        Of the same shape, dtype, bits, block, steps and bases, with a new checksum, and without the
        measured error. Further bits become bits of its frame, and are flipped like the first ones:
        take ``packed.keep(bits)`` for these alone.

    Raises
    ------
    TypeError
        ``packed`` is not a `Packed`, ``rate`` is not a number, or ``seed`` or a plane is not an
        integer.
    ValueError
        ``rate`` is not 0 to 1, ``seed`` is negative, ``planes`` is empty or has bits outside the
        codes, or the frame does not have a code for each entry.
    CorruptFrameError
        The bytes are already corrupt, which a new checksum would hide.

    Notes
    -----
    With all m planes the mean square of the change of a code c is ``rate * (1 - rate) *
    (4**m - 1) / 3 + rate**2 * (2**m - 1 - 2 * c)**2``, which is ``rate * (4**m - 1) / 3`` where
    codes are spread evenly: about ``sqrt(rate / 3)`` of a block's range, whatever m is.

    Bit j of weight i has ``u = (r // 2**11 + 1) / 2**53``, where r is number ``i * m + j``, from 0
    on, of those of 64 bits that numpy's ``PCG64(seed)`` gives. It needs a byte per weight besides
    the frames; drawing takes most of the time.

    References
    ----------
    Stutz, Chandramoorthy, Hein, Schiele, "Bit Error Robustness for Energy-Efficient DNN
    Accelerators", MLSys 2021.
    """
    if not isinstance(packed, Packed):
        raise TypeError(
            "packed must be a gradwire.weights.Packed, as pack() returns, got "
            f"{type(packed).__name__}"
        )
    share = _validate.real("rate", rate)
    if not 0.0 <= share <= 1.0:
        raise ValueError(f"rate must be 0 to 1, got {rate!r}")
    random = np.random.PCG64(_validate.integer("seed", seed, low=0))
    if Frame(packed.frame, max_numel=MAX_NUMEL).header()["coding"] != "none":
        raise ValueError("the frame holds no packed weights: give a dense frame of Affine")
    bits, numel = packed.bits, math.prod(packed.shape)
    may_flip = _may_flip(planes, bits)
    frame = memoryview(packed.joined())
    blocks = -(-numel // packed.block)
    grids = np.frombuffer(frame, "<f2", 2 * blocks, _GRIDS).reshape(blocks, 2).astype(np.float32)
    exponent = int.from_bytes(frame[_EXPONENT], "little", signed=True)
    steps, bases = np.ldexp(grids.T, -exponent, order="C")
    stored = np.frombuffer(frame, np.uint8, offset=_GRIDS + 4 * blocks)
    codes = np.empty(numel, np.uint8)
    for at in range(0, numel, _CHUNK):
        part = codes[at : at + _CHUNK]
        before = np.unpackbits(stored[at * bits // 8 :][: _CHUNK * bits // 8], bitorder="little")
        drawn = random.random_raw(len(part) * bits).reshape(-1, bits)
        after = before[: drawn.size].reshape(-1, bits) ^ ((drawn >> 11 < share * 2**53) & may_flip)
        part[:] = np.packbits(after, axis=1, bitorder="little")[:, 0]
    return Packed(_native.packed_with_codes(frame, codes, steps, bases), packed.shape, packed.dtype)


def _may_flip(planes: Iterable[int] | None, bits: int) -> NDArray[np.bool_]:
    """Return for each bit of a code whether it may be flipped."""
    if planes is None:
        return np.ones(bits, np.bool_)
    if not isinstance(planes, Iterable):
        raise TypeError(f"planes must be a sequence of code bits, such as (7,), got {planes!r}")
    chosen = [
        _validate.integer(f"planes[{i}]", plane, low=0, high=bits - 1)
        for i, plane in enumerate(planes)
    ]
    if not chosen:
        raise ValueError("planes must name at least one bit of a code, got none; pass None for all")
    return np.isin(np.arange(bits), chosen)
