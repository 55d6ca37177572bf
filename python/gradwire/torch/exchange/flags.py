"""Status flags that are summed along with the values of a bucket.

A head is a run of numbers, 0 or 1 on each rank, before the dense parameters of the bucket. Their
sums over the ranks tell every rank whether any rank failed, whether any gradient was not finite,
whether all ranks are at the same bucket, and which parameters no rank used.
"""

import zlib
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from gradwire.torch.engine.layout import Layout

__all__ = ["WORD_NUMEL", "Head", "Sums", "check_word", "read", "same_word", "word_flags"]

_FAILED, _BAD, _WORD = 0, 1, 2
_BITS = 16
WORD_NUMEL = 2 * _BITS
_USED = _WORD + WORD_NUMEL


def check_word(*facts: object) -> int:
    """Return 16 bits that are the same on ranks that agree on all facts."""
    digest = zlib.crc32(repr(facts).encode())
    return (digest ^ digest >> 16) & 0xFFFF


def word_flags(word: int) -> list[int]:
    """Return a word as numbers to sum, of which `same_word` tells whether all ranks have it.

    Each bit and its complement. If ranks differ, both sums are positive on every rank. The sum of
    plain numbers could match on one rank and not on another.
    """
    bits = [word >> bit & 1 for bit in range(_BITS)]
    return [*bits, *(1 - bit for bit in bits)]


def same_word(sums: Sequence[bool]) -> bool:
    """Tell whether all ranks had the same word, from which sums of its flags are positive."""
    return not any(one and zero for one, zero in zip(sums[:_BITS], sums[_BITS:], strict=True))


@dataclass(frozen=True, slots=True)
class Sums:
    """The sums of the heads of all ranks, as flags."""

    failed: bool
    bad: bool
    in_step: bool
    used: list[bool]


class Head:
    """The head of one rank's vector for one bucket, on the host until it is complete.

    Parameters
    ----------
    layout : Layout
        The layout of the bucket.
    word : int
        What `check_word` returned: ranks with other words are out of step.
    """

    __slots__ = ("_flags",)

    def __init__(self, layout: Layout, word: int) -> None:
        self._flags = [0, 0, *word_flags(word), *([0] * len(layout.pieces))]

    @staticmethod
    def numel(layout: Layout) -> int:
        """Return its length."""
        return _USED + len(layout.pieces)

    def use(self, index: int) -> None:
        """Record that the gradient of a piece is not zero on this rank."""
        self._flags[_USED + index] = 1

    def fail(self, *, bad: bool) -> None:
        """Record that this rank failed: because of a non-finite gradient (bad), or otherwise."""
        self._flags[_BAD if bad else _FAILED] = 1

    def bytes_of(self, dtype: torch.dtype) -> NDArray[np.uint8]:
        """Return its bytes in a vector of this dtype."""
        flags = torch.tensor(self._flags, dtype=dtype, device="cpu")
        front: NDArray[np.uint8] = flags.view(torch.uint8).numpy()
        return front


def read(front: NDArray[np.uint8], dtype: torch.dtype) -> Sums:
    """Read the sums over all ranks, from the first bytes of a vector."""
    flags = (torch.from_numpy(front).view(dtype) > 0).tolist()
    return Sums(flags[_FAILED], flags[_BAD], same_word(flags[_WORD:_USED]), flags[_USED:])
