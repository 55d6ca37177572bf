"""Every frame to every rank."""

import dataclasses
from typing import ClassVar, Literal

from gradwire import _validate
from gradwire._part import Part

__all__ = ["AllGather"]

_MEANS = ("ranks", "senders")


@dataclasses.dataclass(frozen=True, repr=False)
class AllGather(Part):
    """Every rank gets the frames of all, and decodes them in rank order.

    It works with every codec. What a rank receives grows with the number of ranks.

    Parameters
    ----------
    mean : {"ranks", "senders"}
        What the sum at each position is divided by: the number of ranks, or of those that sent
        an entry there. The mean over ranks is that of the gradients, and conserves them: what is
        applied and what is left in the residuals add up to what was put in. The mean over senders
        makes a larger step where few ranks sent anything, by up to the number of ranks. Parameters
        that travel dense are averaged over ranks in any case.

    References
    ----------
    Lin, Han, Mao, Wang, Dally, "Deep Gradient Compression: Reducing the Communication Bandwidth
    for Distributed Training", ICLR 2018: over ranks.

    Peng, Quesnelle, Kingma, "DeMo: Decoupled Momentum Optimization", arXiv 2411.19870: over
    senders.
    """

    mean: Literal["ranks", "senders"] = "ranks"
    kind: ClassVar[str] = "all_gather"

    def __post_init__(self) -> None:
        _validate.choice("mean", self.mean, _MEANS)
