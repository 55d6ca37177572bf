"""All-gather: every rank receives the frames of all ranks."""

import dataclasses
from typing import ClassVar, Literal

from gradwire import _validate
from gradwire.exchange.base import Exchange
from gradwire.quantize.base import Quantizer
from gradwire.sparsify.base import Sparsifier


@dataclasses.dataclass(frozen=True, repr=False)
class AllGather(Exchange):
    """Every rank receives the frames of all ranks and decodes them in rank order.

    Works with every codec. The bytes that a rank receives grow with the number of ranks.

    Parameters
    ----------
    mean : {"ranks", "senders"}
        Divisor of the sum at each position: the number of ranks, or of those that sent an entry
        there. The mean over ranks is the mean of the gradients and conserves them: applied values
        plus residuals equal the input. The mean over senders makes a larger step where few ranks
        sent an entry, by up to the number of ranks. Parameters that are sent uncompressed are
        always averaged over ranks.

    References
    ----------
    Lin, Han, Mao, Wang, Dally, "Deep Gradient Compression: Reducing the Communication Bandwidth
    for Distributed Training", ICLR 2018: over ranks.

    Peng, Quesnelle, Kingma, "DeMo: Decoupled Momentum Optimization", arXiv 2411.19870: senders.
    """

    mean: Literal["ranks", "senders"] = "ranks"
    kind: ClassVar[str] = "all_gather"
    gathers_frames: ClassVar[bool] = True
    divides: ClassVar[bool] = False

    def __post_init__(self) -> None:
        _validate.choice("mean", self.mean, ("ranks", "senders"))

    @property
    def means_senders(self) -> bool:
        """Whether ``mean`` says so."""
        return self.mean == "senders"

    def check(self, sparsify: Sparsifier, quantize: Quantizer) -> None:
        """Accept every codec."""
