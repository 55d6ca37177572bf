"""Status flags that are summed along with the values of a bucket.

A head is a run of numbers, 0 or 1 on each rank, before the dense parameters of the bucket. Their
sums over the ranks tell every rank whether any rank failed, whether any gradient was not finite,
whether all ranks are at the same bucket, and which parameters no rank used.
"""

import zlib
from dataclasses import dataclass

import torch

from gradwire.torch.ddp.layout import Layout

__all__ = ["Head", "Sums", "check_word"]

_FAILED, _BAD, _WORD = 0, 1, 2
_BITS = 16
_USED = _WORD + 2 * _BITS


def check_word(*facts: object) -> int:
    """Return 16 bits that are the same on ranks that agree on all facts."""
    digest = zlib.crc32(repr(facts).encode())
    return (digest ^ digest >> 16) & 0xFFFF


@dataclass(frozen=True, slots=True)
class Sums:
    """The sums of the heads of all ranks, as flags."""

    failed: bool
    bad: bool
    in_step: bool
    used: list[bool]


class Head:
    """The head of one rank's vector for one bucket, followed by room for dense parameters.

    Parameters
    ----------
    vector : torch.Tensor
        The vector to write to, with a floating-point dtype.
    layout : Layout
        The layout of the bucket.
    """

    __slots__ = ("_pieces", "dense", "vector")

    def __init__(self, vector: torch.Tensor, layout: Layout) -> None:
        self._pieces = len(layout.pieces)
        self.vector = vector[: self.numel(layout)]
        self.dense = self.vector[_USED + self._pieces :]

    @staticmethod
    def numel(layout: Layout) -> int:
        """Return the length of the head, including the dense parameters."""
        return _USED + len(layout.pieces) + layout.dense_numel

    def clear(self, word: int) -> None:
        """Write a head without failures or used parameters, and with dense parameters zero."""
        self.vector.zero_()
        # Each bit and its complement. If ranks differ, both sums are positive on every rank. The
        # sum of plain numbers could match on one rank and not on another.
        bits = torch.tensor([word >> bit & 1 for bit in range(_BITS)], dtype=self.vector.dtype)
        self.vector[_WORD : _WORD + _BITS] = bits
        self.vector[_WORD + _BITS : _USED] = 1 - bits

    def use(self, index: int) -> None:
        """Record that the gradient of a piece is not zero on this rank."""
        self.vector[_USED + index] = 1

    def fail(self, *, bad: bool) -> None:
        """Record that this rank failed: because of a non-finite gradient (bad), or otherwise."""
        self.vector[_BAD if bad else _FAILED] = 1

    def read(self) -> Sums:
        """Read the sums over all ranks."""
        flags = (self.vector[: _USED + self._pieces] > 0).tolist()
        ones, zeros = flags[_WORD : _WORD + _BITS], flags[_WORD + _BITS : _USED]
        in_step = not any(one and zero for one, zero in zip(ones, zeros, strict=True))
        return Sums(flags[_FAILED], flags[_BAD], in_step, flags[_USED:])
