"""The base class of exchanges."""

import dataclasses
from collections.abc import Sequence
from typing import ClassVar

from gradwire._part import Part
from gradwire.memory.base import Memory
from gradwire.quantize.base import Quantizer
from gradwire.sparsify.base import Sparsifier


@dataclasses.dataclass(frozen=True, repr=False)
class Exchange(Part):
    """The base class of exchanges."""

    KINDS: ClassVar[dict[str, type[Part]]] = {}
    _STATED: ClassVar[tuple[str, ...]] = (
        "gathers_frames",
        "divides",
        "needs_whole_tensor",
        "check",
    )

    gathers_frames: ClassVar[bool]
    """Every rank receives the frames of all and adds them up once the step is known to count."""
    divides: ClassVar[bool]
    """Every rank owns a range of each bucket and sends every other rank a different message."""
    needs_whole_tensor: ClassVar[bool]
    """Tensors are sent as matrices, not as frames, and have another state than `gradwire.State`."""

    @property
    def means_senders(self) -> bool:
        """Whether the sum of an entry is divided by the number of ranks that sent it."""
        return False

    def check(self, sparsify: Sparsifier, quantize: Quantizer) -> None:
        """Check that the exchange can combine the frames of a codec.

        Parameters
        ----------
        sparsify : gradwire.sparsify.Sparsifier
            The codec's sparsifier.
        quantize : gradwire.quantize.Quantizer
            The codec's quantizer.

        Raises
        ------
        ValueError
            It cannot.
        """
        raise NotImplementedError

    def check_memory(self, memory: Memory) -> None:
        """Check that the exchange can use a memory.

        Parameters
        ----------
        memory : gradwire.memory.Memory
            The codec's memory.

        Raises
        ------
        ValueError
            It cannot.
        """

    def check_range(self, quantize: Quantizer, memory: Memory) -> None:
        """Check that sums stay in the quantizer's range, or that a residual keeps the excess.

        Parameters
        ----------
        quantize : gradwire.quantize.Quantizer
            The codec's quantizer.
        memory : gradwire.memory.Memory
            The codec's memory.

        Raises
        ------
        ValueError
            Sums may exceed the range, and no residual keeps the excess.
        """

    def for_ranks(
        self, ranks: int, sparsify: Sparsifier, quantize: Quantizer, memory: Memory
    ) -> "Exchange":
        """Return the exchange for a number of ranks, usually itself.

        Parameters
        ----------
        ranks : int
            Number of ranks that exchange gradients.
        sparsify, quantize, memory
            The other parts of the codec.

        Returns
        -------
        Exchange
        """
        return self

    def suits(self, shape: Sequence[int]) -> bool:
        """Tell whether a tensor is exchanged like this, and not uncompressed.

        Parameters
        ----------
        shape : sequence of int
            Shape of the tensor.

        Returns
        -------
        bool
        """
        return True
