"""What exchanges have in common in which every rank owns a range of positions."""

import dataclasses
from typing import ClassVar

from gradwire.exchange.base import Exchange
from gradwire.extension import Quantizer as Outside
from gradwire.memory import Memory
from gradwire.quantize.base import Quantizer

__all__ = ["Owners"]


@dataclasses.dataclass(frozen=True, repr=False)
class Owners(Exchange):
    """Any exchange in which ranks own ranges: they add up there, and encode the sums again.

    Frames are cut by range, without decoding a value, and the parts sent to their owners. What an
    owner does not say of the sums is added to its residual.
    """

    gathers_frames: ClassVar[bool] = False
    divides: ClassVar[bool] = True
    needs_whole_tensor: ClassVar[bool] = False
    on_device: ClassVar[bool] = False

    def check_quantizer(self, quantize: Quantizer) -> None:
        """Refuse values that cannot be cut.

        Raises
        ------
        ValueError
            The quantizer is of another package.
        """
        if isinstance(quantize, Outside):
            raise ValueError(
                f"{type(self).__name__} cuts frames without decoding their values, and cannot cut "
                f"those of {type(quantize).__name__}, which is of another package; use "
                "exchange=gradwire.exchange.AllGather()"
            )

    def check_memory(self, memory: Memory) -> None:
        """Refuse memories out of which a step cannot be taken back.

        Raises
        ------
        ValueError
            There is only one buffer.
        """
        if not memory.undoable:
            raise ValueError(
                f"{type(self).__name__} adds to residuals what a step that fails must take out "
                f"again, which {memory!r} cannot do with one buffer; use it without low_memory, or "
                "exchange=gradwire.exchange.AllGather()"
            )
