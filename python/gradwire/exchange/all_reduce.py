"""One sum on the wire."""

import dataclasses
from typing import ClassVar

from gradwire._part import Part
from gradwire.exchange._sums import check_summable
from gradwire.quantize import Quantizer
from gradwire.sparsify import Sparsifier

__all__ = ["AllReduce"]

_SHARED = ("all", "random_k")
"""Sparsifiers that choose by nothing that only one rank has."""


@dataclasses.dataclass(frozen=True, repr=False)
class AllReduce(Part):
    """The values are added up on the way, and nothing but values travels.

    What a rank sends does not grow with the number of ranks. It needs the same positions on all
    of them: every position (`gradwire.sparsify.All`), or those drawn from a seed that all share.
    A sum of supports that differ is refused when the codec is made.

    Values travel as the codec's quantizer has them, and partial sums are rounded to it too. What
    the rounding of its own values takes off stays in a rank's residual; that of sums does not.

    References
    ----------
    Stich, Cordonnier, Jaggi, "Sparsified SGD with Memory", NeurIPS 2018, section 2: random-k.
    """

    kind: ClassVar[str] = "all_reduce"

    def check(self, sparsify: Sparsifier, quantize: Quantizer) -> None:
        """Refuse a codec whose values cannot be added up position by position.

        Raises
        ------
        ValueError
            Ranks choose different entries, or codes that have no sum.
        """
        if sparsify.kind not in _SHARED:
            raise ValueError(
                f"AllReduce adds up values of the same positions, and by "
                f"{type(sparsify).__name__} every rank chooses its own; exchange by "
                "gradwire.exchange.AllGather(), or by LeaderIndices(), where one rank chooses "
                "for all"
            )
        check_summable("AllReduce", quantize)
