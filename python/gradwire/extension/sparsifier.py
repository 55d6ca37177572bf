"""Sparsifiers from other packages."""

import dataclasses
from typing import TYPE_CHECKING, Any, ClassVar

from gradwire import sparsify
from gradwire.extension._kinds import Outside

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

__all__ = ["Sparsifier"]


@dataclasses.dataclass(frozen=True, repr=False)
class Sparsifier(Outside, sparsify.Sparsifier):
    """Base class for sparsifiers written in Python.

    A subclass is a frozen dataclass whose fields are its options: plain values that `get_config`
    returns and `from_config` accepts. It sets a unique ``kind``, which identifies it in
    configurations, and implements `select`. It must not hold state: everything that changes is in
    `gradwire.State`.

    Every encode allocates an array of the tensor's size for `select`; the rest costs as much as
    `gradwire.Codec.encode_at`.
    """

    selects: ClassVar[bool] = True
    shared: ClassVar[bool] = False
    magnitude: ClassVar[str | None] = None

    def select(self, values: "NDArray[np.float32]", *, step: int, key: int) -> "NDArray[Any]":
        """Return the positions of the entries to send.

        Parameters
        ----------
        values : numpy.ndarray
            float32, shape (n,), finite, read-only: the sum of tensor and memory.
        step : int
            Number of earlier encodes of this tensor.
        key : int
            A 64-bit random seed, the same on every rank, different for each step and for each name
            of a state. Use it as in ``numpy.random.Generator(numpy.random.Philox(key))``.

        Returns
        -------
        numpy.ndarray
            Integers, shape (count,), strictly ascending, each in 0..n-1. Entries that are zero may
            be selected; they take up space and change nothing.
        """
        raise NotImplementedError(f"{type(self).__name__} has no method select")

    def max_count(self, numel: int) -> int:
        """Return the largest number of entries that `select` may return, by default all."""
        return numel
