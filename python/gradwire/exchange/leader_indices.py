"""One rank chooses for all."""

import dataclasses
from typing import ClassVar

from gradwire._part import Part
from gradwire.exchange._sums import check_summable
from gradwire.quantize import Quantizer
from gradwire.sparsify import All, Sparsifier

__all__ = ["LeaderIndices"]


@dataclasses.dataclass(frozen=True, repr=False)
class LeaderIndices(Part):
    """The leader of a step sends its positions, and all ranks add up their values there.

    The leader selects by the codec's sparsifier and broadcasts positions without values; then one
    all-reduce of k values follows. Every rank encodes at the same positions, so that the mean of
    what they send is what would be sent of their mean (CLT-k), and the volume does not grow with
    the number of ranks. The leader is another rank in each step, and in one step not the same
    for all buckets.

    It relies on residuals that are similar over the ranks, which `gradwire.memory.LowPass` helps.
    Values travel as the codec's quantizer has them, and partial sums are rounded to it too.

    References
    ----------
    Chen, Ni, Lu, Cui, Chen, Sun, Wang, Venkataramani, Srinivasan, Zhang, Gopalakrishnan,
    "ScaleCom: Scalable Sparsified Gradient Compression for Communication-Efficient Distributed
    Training", NeurIPS 2020, section 2.
    """

    kind: ClassVar[str] = "leader_indices"

    def check(self, sparsify: Sparsifier, quantize: Quantizer) -> None:
        """Refuse a codec that leaves a leader nothing to say, or values nothing to be added by.

        Raises
        ------
        ValueError
            Every entry is sent, or codes have no sum.
        """
        if isinstance(sparsify, All):
            raise ValueError(
                "LeaderIndices needs a sparsifier whose entries a leader chooses, and All sends "
                "every one; exchange by gradwire.exchange.AllReduce()"
            )
        check_summable("LeaderIndices", quantize)
