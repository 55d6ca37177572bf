"""The base class of quantizers."""

import abc
import dataclasses
from typing import ClassVar

from gradwire._part import Part
from gradwire.sparsify.base import Sparsifier


@dataclasses.dataclass(frozen=True, repr=False)
class Quantizer(Part):
    """The base class of quantizers, also of a `gradwire.extension.Quantizer`."""

    KINDS: ClassVar[dict[str, type[Part]]] = {}
    _STATED: ClassVar[tuple[str, ...]] = ("summed_as", "contracts", "needs_memory")

    needs_memory: ClassVar[bool]  #: so little is sent that training may not converge without one

    @property
    @abc.abstractmethod
    def summed_as(self) -> str | None:
        """The dtype in which values of several ranks can be summed on the wire, if they can."""

    @property
    def largest(self) -> float | None:
        """The largest representable magnitude; greater ones saturate. None if values are scaled."""
        return None

    @property
    @abc.abstractmethod
    def contracts(self) -> bool:
        """Whether its error is smaller than the values, whatever their order.

        Only then can a memory feed the error back: otherwise it would grow from encode to encode.
        """

    def check_summable(self, exchange: str) -> None:
        """Raise a ValueError if an exchange that sums on the wire cannot sum these values."""
        if self.summed_as is None:
            raise ValueError(
                f"{exchange} sums values on the wire, but codes of {type(self).__name__} cannot be "
                "summed; use quantize=Float32(), BFloat16() or Float16(scaled=False), or "
                "exchange=gradwire.exchange.AllGather()"
            )

    def check_feedback(self) -> None:
        """Raise a ValueError if the quantizer does not contract."""
        if not self.contracts:
            raise ValueError(
                f"the error of {self!r} can be larger than the values, so a memory that feeds it "
                f"back would grow with every encode; {self._contracting}, or "
                "memory=gradwire.memory.NoMemory()"
            )

    @property
    def _contracting(self) -> str:
        return "use another quantizer"

    def check(self, sparsify: Sparsifier) -> None:
        """Raise a ValueError if the quantizer needs something that the sparsifier lacks."""


@dataclasses.dataclass(frozen=True, repr=False)
class Codes(Quantizer):
    """The family of quantizers whose codes nobody can sum, but whose errors a memory can keep."""

    summed_as: ClassVar[str | None] = None
    contracts: ClassVar[bool] = True
    needs_memory: ClassVar[bool] = False
