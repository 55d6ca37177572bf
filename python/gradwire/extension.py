"""Codecs from other packages: parts written in Python, a preset, an entry point.

Memories, frames, checkpoints, `gradwire.torch` and the command line work with such parts just as
with built-in ones. See the guide "Add a codec".

A part is a frozen dataclass whose fields are its options: plain values that `get_config` returns
and `from_config` accepts. It sets a unique ``kind``, a lower-case identifier of at most 63
characters, and must not hold state: everything that changes is in `gradwire.State`. A ``key`` is a
64-bit random seed, different for each step and for each name of a state; use it as in
``numpy.random.Generator(numpy.random.Philox(key))``.
"""

import abc
import dataclasses
import re
from typing import TYPE_CHECKING, Any, ClassVar

from gradwire import _validate
from gradwire._part import Part, public_name
from gradwire.quantize.base import Codes
from gradwire.sparsify.base import OwnSelection

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray
    from typing_extensions import Buffer

__all__ = ["Quantizer", "Sparsifier"]


class ExternalPart(Part, abc.ABC):
    """A part from another package. Its kind must differ from that of every other of its sort."""

    @classmethod
    def _register(cls) -> None:
        name = ".".join(_home(cls))
        kind: object = cls.__dict__["kind"]
        if not isinstance(kind, str) or not re.fullmatch(r"[a-z][a-z0-9_]{0,62}", kind):
            expected = "a lower-case identifier of at most 63 characters"
            _validate.refuse_type(f"{name}.kind", expected, kind)
        other = cls.KINDS.get(kind)
        # A class that is defined again, as in a notebook, replaces the old one.
        if other is not None and _home(other) != _home(cls):
            taken = (
                ".".join(_home(other)) if issubclass(other, ExternalPart) else public_name(other)
            )
            raise TypeError(f"{name}.kind is {kind!r}, which {taken} already uses")
        cls.KINDS[kind] = cls


def _home(cls: type[Any]) -> tuple[str, str]:
    return cls.__module__, cls.__qualname__


@dataclasses.dataclass(frozen=True, repr=False)
class Sparsifier(ExternalPart, OwnSelection):
    """Base class for sparsifiers written in Python, which implement `select`.

    Every encode allocates an array of the tensor's size for it; the rest costs as much as
    `gradwire.Codec.encode_at`. The ``kind`` stands in configurations.
    """

    @abc.abstractmethod
    def select(self, values: "NDArray[np.float32]", *, step: int, key: int) -> "NDArray[Any]":
        """Return the positions of the entries to send.

        Parameters
        ----------
        values : numpy.ndarray
            float32, shape (n,), finite, read-only: the sum of tensor and memory.
        step : int
            Number of earlier encodes of this tensor.
        key : int
            A random seed, the same on every rank.

        Returns
        -------
        numpy.ndarray
            Integers, shape (count,), strictly ascending, each in 0..n-1. Entries that are zero may
            be selected; they take up space and change nothing.
        """

    def max_count(self, numel: int) -> int:
        """Return the largest number of entries that `select` may return, by default all."""
        return numel


@dataclasses.dataclass(frozen=True, repr=False)
class Quantizer(ExternalPart, Codes):
    """Base class for quantizers written in Python, which implement `encode` and `decode`.

    A frame holds the kind and the bytes of `encode`, but no options: readers have only the class.
    Anything else that they need must be in the bytes. A subclass sets ``bits``, the most bits that
    a value takes, 1 to 65536. Buffers are reserved by it: ``count * bits / 8`` bytes for ``count``
    values, and 64 bytes besides, for scales.

    An encode first makes an exact frame, codes its values and decodes them again, so that the
    residual keeps the error. A decode makes an array of the values. A quantizer whose error can be
    larger than the values sets ``contracts = False``; it is then refused with a memory, where its
    error would grow from encode to encode.
    """

    _STATED: ClassVar[tuple[str, ...]] = ("bits",)

    bits: ClassVar[int]

    @abc.abstractmethod
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
            A random seed, different for each rank.

        Returns
        -------
        bytes-like
            At most ``bits`` per value and 64 bytes, and at least one bit per value, so that a
            reader's memory is proportional to the bytes that it receives.
        """

    @classmethod
    @abc.abstractmethod
    def decode(cls, data: bytes, count: int) -> "NDArray[np.float32]":
        """Return the values of a code: ``count`` of them, at least one.

        It must decode the same values on every machine, from the data alone, which have at least
        one bit per value. They may come from anywhere: raise an exception if they are not what
        `encode` returns.

        Returns
        -------
        numpy.ndarray
            float32, shape (count,), finite.
        """
