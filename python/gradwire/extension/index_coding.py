"""Index codings from other packages."""

import dataclasses
from typing import TYPE_CHECKING, Any, ClassVar

from gradwire._part import Part
from gradwire.extension._kinds import Outside

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray
    from typing_extensions import Buffer

__all__ = ["IndexCoding"]


@dataclasses.dataclass(frozen=True, repr=False)
class IndexCoding(Outside):
    """Base class for codings of positions written in Python; the ``indices`` of a codec.

    A subclass is a frozen dataclass like `Quantizer`, with a unique ``kind`` of at most 63
    characters, and implements `encode`, `decode` and `max_len`. Frames without entries, or with an
    entry at every position, have no positions to code and do without it.

    Every encode decodes its positions again, to be sure that a receiver gets the same.
    """

    KINDS: ClassVar[dict[str, type[Part]]] = {}

    def encode(self, positions: "NDArray[np.uint32]", *, numel: int) -> "Buffer":
        """Return a code of the positions.

        Parameters
        ----------
        positions : numpy.ndarray
            uint32, shape (count,), strictly ascending, each below ``numel``, read-only;
            0 < count < numel.
        numel : int
            Number of entries of the tensor.

        Returns
        -------
        bytes-like
            At most ``max_len(numel, count)`` bytes.
        """
        raise NotImplementedError(f"{type(self).__name__} has no method encode")

    @classmethod
    def decode(cls, data: bytes, numel: int, count: int) -> "NDArray[Any]":
        """Return the positions of a code.

        The data may come from anywhere: raise an exception if they are not what `encode` returns.

        Parameters
        ----------
        data : bytes
        numel, count : int
            Number of entries of the tensor, and of positions; 0 < count <= numel.

        Returns
        -------
        numpy.ndarray
            Integers, shape (count,), strictly ascending, each below ``numel``.
        """
        raise NotImplementedError(f"{cls.__name__} has no method decode")

    def max_len(self, numel: int, count: int) -> int:
        """Return the largest number of bytes of a code of ``count`` positions or fewer.

        It must not decrease with the count. Buffers are reserved by it.
        """
        raise NotImplementedError(f"{type(self).__name__} has no method max_len")
