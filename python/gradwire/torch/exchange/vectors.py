"""What is summed of a bucket on the wire: the entries that all ranks send, and a rank's vectors."""

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from gradwire.torch.engine.layout import Layout
from gradwire.torch.engine.metrics import Outcomes
from gradwire.torch.exchange.flags import Head

__all__ = ["Chosen", "Vectors", "wire_dtype"]


def wire_dtype(layout: Layout) -> torch.dtype:
    """Return the dtype in which the values of a bucket are summed."""
    summed_as = layout.compressed[0].codec.quantize.summed_as if layout.compressed else "float32"
    dtype: torch.dtype = getattr(torch, str(summed_as))
    return dtype


@dataclass(slots=True, eq=False)
class Chosen:
    """The entries of one bucket that all ranks send.

    Attributes
    ----------
    counts : list of int
        Number of entries of each piece; the same on every rank, even after a failure.
    positions : list
        Their positions, as uint32; None for all entries of a piece, or until it is encoded.
    error : BaseException or None
        Why this rank has no values for some of them.
    made : dict
        Pieces already encoded, by index: outcome and values.
    nbytes : list of int
        Bytes on the wire for the positions of each piece.
    by : object
        What all ranks must agree on to select the same positions.
    collectives, room : int
        Collectives made for the positions, and bytes passed to them.
    """

    counts: list[int]
    positions: list[NDArray[np.uint32] | None]
    error: BaseException | None
    made: dict[int, tuple[Outcomes, torch.Tensor]]
    nbytes: list[int]
    by: object = None
    collectives: int = 0
    room: int = 0


@dataclass(slots=True, eq=False)
class Vectors:
    """What this rank sums of one bucket.

    Attributes
    ----------
    chosen : Chosen
    head : Head
        Of the first vector; written last.
    dense, values : torch.Tensor
        Where dense parameters and the values of all pieces are in the vectors.
    whole : list of torch.Tensor
        The vectors, one or two.
    buffers : list of torch.Tensor
        The bytes that these are parts of.
    error : BaseException or None
        Why this rank sums nothing but the head.
    """

    chosen: Chosen
    head: Head
    dense: torch.Tensor
    values: torch.Tensor
    whole: list[torch.Tensor]
    buffers: list[torch.Tensor]
    error: BaseException | None = None

    @property
    def front(self) -> torch.Tensor:
        """The bytes of the vector that begins with the head."""
        return self.whole[0].view(torch.uint8)
