"""Which rank owns which entries of a bucket, and the messages that say how each rank fared.

The compressed entries of a model, one parameter after another from its end, are dealt out to the
ranks in runs, so long that a bucket has about one for each rank. So a small parameter mostly has
one owner, a bucket has all of them, and who owns an entry does not depend on how DDP groups the
parameters, which differs at the start of a resumed run. Of a parameter as large as a bucket, every
rank owns one run. Dense entries are divided evenly in every bucket: their sums are the same,
whoever adds them up.

Where entries in a row share scales, such as those of a column of `gradwire.quantize.TwoMeans`, runs
begin where such a group does, unless that would make them too unequal. So owners quantize whole
groups again, and no frame is cut within one.
"""

import enum
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from gradwire.torch.engine.layout import Layout
from gradwire.torch.engine.parameter import ParameterSlot
from gradwire.torch.errors import ExchangeError

__all__ = [
    "Owned",
    "Ranges",
    "Status",
    "check_lengths",
    "frame_sizes",
    "read_fronts",
    "read_results",
    "result",
]

Bytes = NDArray[np.uint8]

_FRONT = struct.Struct("<4sB3xI4xQQ")  # magic, status, layout digest, sequence number, length
_RESULT = struct.Struct("<4sB3xQ")  # magic, status, length
_MAGIC, _MERGED = b"GWR1", b"GWM1"
_HEADER_NBYTES = 48
_SECTIONS = struct.Struct("<QQ")  # bytes of both sections, in the header of a frame
_SECTIONS_AT = 32
_FRAME_NBYTES, _ENTRY_NBYTES = 4096, 32
"""More than any frame has, whatever its codec: besides its entries, and for each of them."""
_UNEQUAL = 4
"""Runs begin where groups do if a run has at least so many of them."""


class Status(enum.IntEnum):
    """How a rank fared."""

    OK = 0
    FAILED = 1


@dataclass(frozen=True, slots=True)
class Owned:
    """A part of a parameter that one rank owns.

    Attributes
    ----------
    index : int
        Of the parameter among the compressed ones of the bucket.
    start, stop : int
        Its entries in the parameter.
    """

    index: int
    start: int
    stop: int


class Ranges:
    """The division of one bucket.

    Attributes
    ----------
    bounds : list of list of int
        Where the runs of each compressed parameter begin and end, in its entries.
    owners : list of list of int
        The rank that owns each of them; no rank owns two runs of one parameter.
    owned : list of list of Owned
        What each rank owns, in the order of the bucket.
    dense : list of int
        Where each rank's dense entries begin and end.
    front : int
        Bytes of the message that goes ahead.
    """

    __slots__ = ("bounds", "dense", "front", "owned", "owners")

    def __init__(self, layout: Layout, size: int) -> None:
        cuts = [_cut(parameter, size) for parameter in layout.compressed]
        self.bounds = [bounds for bounds, _ in cuts]
        self.owners = [owners for _, owners in cuts]
        self.owned: list[list[Owned]] = [[] for _ in range(size)]
        for index, (bounds, owners) in enumerate(cuts):
            for owner, (start, stop) in zip(owners, pairwise(bounds), strict=True):
                self.owned[owner].append(Owned(index, start, stop))
        self.dense = _divided(layout.dense_numel, size)
        self.front = _FRONT.size + -(-len(cuts) // 8)

    def limits(self, itemsize: int) -> list[int]:
        """Return for each rank what no message about what it owns exceeds, in bytes.

        Parameters
        ----------
        itemsize : int
            Bytes of a dense entry.
        """
        return [
            itemsize * (stop - start)
            + sum(_FRAME_NBYTES + _ENTRY_NBYTES * (each.stop - each.start) for each in owned)
            for owned, (start, stop) in zip(self.owned, pairwise(self.dense), strict=True)
        ]

    def fronts(
        self, layout: Layout, sequence: int, lengths: Sequence[int] | None, zero: NDArray[np.int64]
    ) -> Bytes:
        """Return what goes to each rank ahead of the parts, one row a rank.

        Parameters
        ----------
        layout : Layout
        sequence : int
        lengths : sequence of int, optional
            Bytes of the parts for each rank; None if there are none, because this rank failed.
        zero : numpy.ndarray
            For each compressed parameter, whether the gradient was zero.
        """
        rows = np.zeros((len(self.owned), self.front), np.uint8)
        rows[:, _FRONT.size :] = np.packbits(zero.astype(bool))
        status = Status.FAILED if lengths is None else Status.OK
        for rank, row in enumerate(rows):
            length = 0 if lengths is None else lengths[rank]
            _FRONT.pack_into(row.data, 0, _MAGIC, status, layout.digest, sequence, length)
        return rows


def _cut(parameter: ParameterSlot, size: int) -> tuple[list[int], list[int]]:
    """Return where the runs of a parameter begin and end, and who owns them."""
    numel, (before, together) = parameter.numel, parameter.run
    run = max(1, -(-together // size))
    first = before // run
    if numel == 0:
        return [0], []
    if numel > run * (size - 1):  # one run would not be enough, or two could have one owner
        bounds = _divided(numel, size)
    else:
        inside = range(run * (first + 1), before + numel, run)
        bounds = [0, *(each - before for each in inside), numel]
    step: int = parameter.codec._codec.cut_step(numel)
    if _UNEQUAL * step <= run:
        bounds[1:-1] = [min((each + step // 2) // step * step, numel) for each in bounds[1:-1]]
    owners = [(first + index) % size for index in range(len(bounds) - 1)]
    there = [index for index in range(len(owners)) if bounds[index] < bounds[index + 1]]
    return [*(bounds[index] for index in there), numel], [owners[index] for index in there]


def _divided(numel: int, size: int) -> list[int]:
    return [numel * rank // size for rank in range(size + 1)]


def read_fronts(
    rows: Bytes, layout: Layout, sequence: int
) -> tuple[bool, list[int], NDArray[np.bool_]]:
    """Read what all ranks have sent ahead.

    Returns
    -------
    failed : bool
        Some rank has failed.
    lengths : list of int
        Bytes of what each of them has for this rank.
    unused : numpy.ndarray
        For each compressed parameter, whether the gradient is zero on every rank.

    Raises
    ------
    ExchangeError
        A rank is at another bucket.
    """
    failed, lengths = False, []
    for rank, row in enumerate(rows):
        magic, status, digest, theirs, length = _FRONT.unpack_from(row.data)
        if magic != _MAGIC or status not in set(Status):
            raise ExchangeError(f"the message of rank {rank} is not one of gradwire's", rank)
        if (digest, theirs) != (layout.digest, sequence):
            raise ExchangeError(
                f"rank {rank} is at bucket {theirs}, this rank at bucket {sequence}, with "
                f"{'the same' if digest == layout.digest else 'different'} parameters: the ranks "
                "did not run the same backward passes",
                rank,
            )
        failed |= status != Status.OK
        lengths.append(length)
    zeros = np.unpackbits(rows[:, _FRONT.size :], axis=1, count=len(layout.pieces))
    return failed, lengths, zeros.min(axis=0).astype(bool)


def result(status: Status, length: int) -> Bytes:
    """Return what goes to all ranks ahead of what this rank has merged."""
    row = np.zeros(_RESULT.size, np.uint8)
    _RESULT.pack_into(row.data, 0, _MERGED, status, length)
    return row


def read_results(rows: Bytes) -> tuple[bool, list[int]]:
    """Read the results of all ranks: whether any has failed, and the bytes of each."""
    failed, lengths = False, []
    for rank, row in enumerate(rows):
        magic, status, length = _RESULT.unpack_from(row.data)
        if magic != _MERGED or status not in set(Status):
            raise ExchangeError(f"the message of rank {rank} is not one of gradwire's", rank)
        failed |= status != Status.OK
        lengths.append(length)
    return failed, lengths


def check_lengths(lengths: Sequence[int], limits: Sequence[int]) -> None:
    """Raise an ExchangeError if a rank has more bytes for this one than there can be."""
    for rank, (length, limit) in enumerate(zip(lengths, limits, strict=True)):
        if length > limit:
            raise ExchangeError(
                f"rank {rank} announces {length} bytes, more than the {limit} that there can be: "
                "its message is damaged",
                rank,
            )


def frame_sizes(message: Bytes, at: int, count: int, rank: int) -> list[int]:
    """Return the bytes of so many frames that follow one another, as their headers say."""
    sizes = []
    for _ in range(count):
        if at + _HEADER_NBYTES > message.size:
            break
        size = _HEADER_NBYTES + sum(_SECTIONS.unpack_from(message.data, at + _SECTIONS_AT))
        sizes.append(size)
        at += size
    if len(sizes) < count or at != message.size:
        raise ExchangeError(f"the frames of rank {rank} do not fill its message", rank)
    return sizes
