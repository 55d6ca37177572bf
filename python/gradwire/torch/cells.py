"""Codes of an affine grid with torch's operators, on any device: bit for bit the core's.

The formulas are those of the core's `simd/cells` and `quantize/affine`. Numbers are of float32 and
each operation is rounded on its own; random numbers are computed in int64, which all devices have.
"""

import math
from typing import TypeVar

import numpy as np
import torch
from torch.nn.functional import pad

MANY = 1 << 22
"""Entries that are worked on at a time: what is computed in between takes some times as much."""

Number = TypeVar("Number", int, torch.Tensor)

_WORD, _LONG = 2**32 - 1, 2**64 - 1
_GOLDEN = 0x9E37_79B9_7F4A_7C15
_CELL = 2.0**-24
_MOST = 32752.0
_NORMAL = 2.0**-14


def encoded(
    x: torch.Tensor, largest: float, bits: int, block: int, key: int
) -> tuple[torch.Tensor, torch.Tensor, int]:
    """Return the codes of ``Affine(bits, block, "range", "stochastic")`` for a tensor.

    Parameters
    ----------
    x : torch.Tensor
        float32, float16 or bfloat16, of one dimension.
    largest : float
        The largest magnitude in it, which is finite.
    bits, block : int
        Of the grid.
    key : int
        Of the random numbers: see `rounding_key`.

    Returns
    -------
    tuple of (torch.Tensor, torch.Tensor, int)
        Steps and bases of blocks, float16 of shape (blocks, 2); the codes, packed, uint8; the
        exponent of the frame.
    """
    numel = x.numel()
    exponent, most = _exponent(largest), 2**bits - 1
    power, per_step = 2.0**exponent, float(np.float32(1) / np.float32(most))
    words, codes = [], []
    for start in range(0, numel, _stride(block)):
        values = x[start : start + _stride(block)].to(torch.float32)
        # Of a last block that is shorter, its last value again: it has the same ends.
        short = -len(values) % block
        rows = torch.cat([values, values[-1:].expand(short)]).view(-1, block)
        low, high = (
            (ends * power).clamp(-_MOST, _MOST) + 0.0 for ends in (rows.amin(1), rows.amax(1))
        )
        base = _down(low)
        step = -_down(-((high - base) * per_step))
        words.append(torch.stack([step, base], 1).to(torch.float16))
        inverse = torch.where(step > 0, torch.ones_like(step).div_(step), 0.0)
        place = rows.mul(power).sub_(base[:, None]).mul_(inverse[:, None]).clamp_(0.0, most)
        place = place.view(-1)[: len(values)]
        whole = place.trunc()
        above = _chosen(key, start, place.sub_(whole))
        codes.append(packed(whole.to(torch.uint8).add_(above), bits))
    return torch.cat(words), torch.cat(codes), exponent


def decoded(
    words: torch.Tensor,
    codes: torch.Tensor,
    numel: int,
    grid: tuple[int, int, int],
    dtype: torch.dtype,
) -> torch.Tensor:
    """Return the values of codes.

    Parameters
    ----------
    words, codes : torch.Tensor
        As `encoded` returns them.
    numel : int
        Number of values.
    grid : tuple of int
        Bits, block and exponent.
    dtype : torch.dtype
        Dtype of the result: the core's float32 values, rounded.

    Returns
    -------
    torch.Tensor
        Of shape (numel,), on the device of the codes.
    """
    bits, block, exponent = grid
    out = torch.empty(numel, dtype=dtype, device=codes.device)
    for start in range(0, numel, _stride(block)):
        part = out[start : start + _stride(block)]
        first, blocks = start // block, -(-len(part) // block)
        code = unpacked(codes[start * bits // 8 :], len(part), bits).to(torch.float32)
        code = pad(code, (0, blocks * block - len(part))).view(blocks, block)
        step, base = words[first : first + blocks].to(torch.float32).mul(2.0**-exponent).T
        part.copy_((base[:, None] + step[:, None] * code).view(-1)[: len(part)])
    return out


def packed(codes: torch.Tensor, bits: int) -> torch.Tensor:
    """Return codes, one-dimensional uint8, packed in ``bits`` bits each, lowest bits first."""
    # Eight codes are so many bytes as a code has bits.
    eights = pad(codes, (0, -len(codes) % 8)).view(-1, 8).to(torch.int64)
    word = eights[:, 0].clone()
    for i in range(1, 8):
        word |= eights[:, i] << i * bits
    octets = [(word >> 8 * i & 255).to(torch.uint8) for i in range(bits)]
    return torch.stack(octets, 1).view(-1)[: -(-len(codes) * bits // 8)]


def unpacked(codes: torch.Tensor, numel: int, bits: int) -> torch.Tensor:
    """Return the first codes of packed ones, int32."""
    needed = codes[: -(-numel * bits // 8)]
    octets = pad(needed, (0, -len(needed) % bits)).view(-1, bits).to(torch.int32)
    octets = pad(octets, (0, 1))  # a last code ends with its byte
    taken = [
        (octets[:, at // 8] | octets[:, at // 8 + 1] << 8) >> at % 8 & (1 << bits) - 1
        for at in range(0, 8 * bits, bits)
    ]
    return torch.stack(taken, dim=1).view(-1)[:numel]


def rounding_key(seed: int, stream: int) -> int:
    """Return the key of the random numbers of an encode: that of a new state without a name."""
    key = _scrambled(seed)
    for word in (0, 0, ~stream & _LONG):  # the tensor, the step and the stream
        key = _scrambled(key ^ _scrambled(word + _GOLDEN & _LONG))
    return key


def _stride(block: int) -> int:
    """Return the number of entries per pass: whole blocks, and whole bytes of codes."""
    return block * max(8, MANY // block // 8 * 8)


def _exponent(largest: float) -> int:
    if largest == 0.0:
        return 0
    significand, exponent = math.frexp(largest)
    most = max(16 - exponent - (significand * 2**24 > 0xFFE000), -112)
    return min(max(most - 1, -103), 126)


def _down(number: torch.Tensor) -> torch.Tensor:
    """Return the largest float16 that is not above."""
    near = number.to(torch.float16).to(torch.float32)
    exponent = number.abs().clamp_min(_NORMAL).view(torch.int32) & 0x7F800000
    return torch.where(near <= number, near, near - exponent.view(torch.float32) * 2.0**-10)


def _chosen(key: int, first: int, chance: torch.Tensor) -> torch.Tensor:
    """Return whether each of these chances, in [0, 1), is taken, by its number and its position."""
    position = torch.arange(first, first + len(chance), device=chance.device)
    unit = (_bits(key, position) >> 8).to(torch.float32).mul_(_CELL)
    taken = unit < chance
    # A number stands for all of its cell: where a chance ends in it, further numbers decide.
    for i in (taken & (chance < unit + _CELL)).nonzero().view(-1).tolist():
        taken[i] = _settled(key, first + i, float(chance[i]))
    return taken


def _settled(key: int, position: int, chance: float) -> bool:
    while True:
        unit = (_bits(key, position) >> 8) * _CELL
        if not unit < chance < unit + _CELL:
            return unit < chance
        chance = float(np.float32(chance - unit)) / _CELL
        key = _scrambled(key + _GOLDEN & _LONG)


def _bits(key: int, position: Number) -> Number:
    """Return the random numbers of 32 bits at positions."""
    mixed = _finalized((position + (key & _WORD)) & _WORD)
    return _finalized((mixed + (key >> 32)) & _WORD)


def _finalized(x: Number) -> Number:
    x = (x ^ (x >> 16)) * 0x21F0_AAAD & _WORD
    x = (x ^ (x >> 15)) * 0x735A_2D97 & _WORD
    return x ^ (x >> 15)


def _scrambled(word: int) -> int:
    word = (word ^ (word >> 30)) * 0xBF58_476D_1CE4_E5B9 & _LONG
    word = (word ^ (word >> 27)) * 0x94D0_49BB_1331_11EB & _LONG
    return word ^ (word >> 31)
