"""Quantizers from other packages."""

import dataclasses
from typing import TYPE_CHECKING, ClassVar

from gradwire import quantize
from gradwire.extension._kinds import Outside

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray
    from typing_extensions import Buffer

__all__ = ["Quantizer"]


@dataclasses.dataclass(frozen=True, repr=False)
class Quantizer(Outside, quantize.Quantizer):
    """Base class for quantizers written in Python.

    A subclass is a frozen dataclass whose fields are its options: plain values that `get_config`
    returns and `from_config` accepts. It sets a unique ``kind`` of at most 63 characters, which
    stands in configurations and in frames, and implements `encode`, `decode` and `max_len`. It must
    not hold state: everything that changes is in `gradwire.State`.

    A frame holds the kind and the bytes of `encode`, but no options: readers have only the class.
    What they need beside the values must be in the bytes.

    An encode makes an exact frame first, codes its values and decodes them again, so that the
    residual keeps what the receiver does not get. With ``Residual(low_memory=True)`` it is made on
    a copy of the residual. A decode makes an array of the values.

    One whose error can be larger than the values sets ``contracts = False``, and is then refused
    behind a memory, where its error would grow from encode to encode.
    """

    summed_as: ClassVar[str | None] = None
    contracts: ClassVar[bool] = True
    needs_memory: ClassVar[bool] = False

    def encode(self, values: "NDArray[np.float32]", *, step: int, key: int) -> "Buffer":
        """Return a code of the values.

        Parameters
        ----------
        values : numpy.ndarray
            float32, shape (count,), finite, read-only, count at least 1: the entries to send, in
            the order of their positions.
        step : int
            Number of earlier encodes of this tensor.
        key : int
            A 64-bit random seed, different for each rank, step and name of a state. Use it as in
            ``numpy.random.Generator(numpy.random.Philox(key))``.

        Returns
        -------
        bytes-like
            At most ``max_len(count)`` bytes, and at least one bit per value, so that the memory of
            a reader is in proportion to the bytes that it receives.
        """
        raise NotImplementedError(f"{type(self).__name__} has no method encode")

    @classmethod
    def decode(cls, data: bytes, count: int) -> "NDArray[np.float32]":
        """Return the values of a code.

        It must decode the same values on every machine, from the data alone. The data may come from
        anywhere: raise an exception if they are not what `encode` returns.

        Parameters
        ----------
        data : bytes
            At least one bit per value.
        count : int
            Number of values, at least 1.

        Returns
        -------
        numpy.ndarray
            float32, shape (count,), finite.
        """
        raise NotImplementedError(f"{cls.__name__} has no method decode")

    def max_len(self, count: int) -> int:
        """Return the largest number of bytes of a code of ``count`` values or fewer.

        It must not decrease with the count. Buffers are reserved by it.
        """
        raise NotImplementedError(f"{type(self).__name__} has no method max_len")
