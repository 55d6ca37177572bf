"""What every exchange is."""

import dataclasses
from collections.abc import Sequence
from typing import ClassVar

from gradwire._part import Part
from gradwire.memory.base import Memory
from gradwire.quantize.base import Quantizer
from gradwire.sparsify.base import Sparsifier

__all__ = ["Exchange"]


@dataclasses.dataclass(frozen=True, repr=False)
class Exchange(Part):
    """Any exchange.

    Attributes
    ----------
    gathers_frames : bool
        Every rank receives the frames of all ranks, and adds up nothing before it is known whether
        the step counts.
    divides : bool
        Every rank owns a range of each bucket, and has something else for every other rank.
    needs_whole_tensor : bool
        A tensor is sent as the matrix that it is, not as a frame of its entries, and its state is
        not a `gradwire.State`.
    on_device : bool
        Gradients may be on a device where kernels encode and residuals are kept. False if what is
        merged on the host would have to be added to these.
    """

    KINDS: ClassVar[dict[str, type[Part]]] = {}
    _STATED: ClassVar[tuple[str, ...]] = (
        "gathers_frames",
        "divides",
        "needs_whole_tensor",
        "on_device",
        "check",
    )

    gathers_frames: ClassVar[bool]
    divides: ClassVar[bool]
    needs_whole_tensor: ClassVar[bool]
    on_device: ClassVar[bool]

    @property
    def means_senders(self) -> bool:
        """Whether sums are divided by how many ranks sent an entry. Most divide by all ranks."""
        return False

    def check(self, sparsify: Sparsifier, quantize: Quantizer) -> None:
        """Refuse a codec whose frames cannot be combined in this way.

        Raises
        ------
        ValueError
            The parts do not fit.
        """
        raise NotImplementedError

    def check_memory(self, memory: Memory) -> None:
        """Refuse a codec whose memory does not go with this. Most take every memory.

        Raises
        ------
        ValueError
            It does not.
        """

    def check_range(self, quantize: Quantizer, memory: Memory) -> None:
        """Refuse a quantizer whose range is too small here for want of a residual.

        Raises
        ------
        ValueError
            It is.
        """

    def suits(self, shape: Sequence[int]) -> bool:
        """Tell whether a tensor of this shape is sent in this way, and not dense."""
        del shape
        return True
