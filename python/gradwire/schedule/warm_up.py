"""Decreasing ratios in the first epochs."""

import dataclasses
from typing import ClassVar, Self

from gradwire import _validate
from gradwire.codec import Codec
from gradwire.schedule._amount import ratio_of, with_ratio
from gradwire.schedule.base import Schedule

__all__ = ["WarmUp"]


@dataclasses.dataclass(frozen=True, repr=False)
class WarmUp(Schedule):
    """A ratio for each of the first epochs, then the ratio of the codec.

    Gradients change quickly early in training, so residuals become stale. The codec must have a
    ratio; no epoch uses a smaller one.

    Parameters
    ----------
    ratios : tuple of float
        Ratios of the first epochs, each in (0, 1]. The default is that of the paper: 25 %, 6.25 %,
        1.5625 %, 0.4 % and 0.1 % of the entries.

    References
    ----------
    Lin, Han, Mao, Wang, Dally, "Deep Gradient Compression: Reducing the Communication Bandwidth
    for Distributed Training", ICLR 2018, sections 3.3 and 4.1.
    """

    ratios: tuple[float, ...] = (0.25, 0.0625, 0.015625, 0.004, 0.001)
    kind: ClassVar[str] = "warm_up"
    by_epoch_alone: ClassVar[bool] = True

    def __post_init__(self) -> None:
        if not isinstance(self.ratios, (tuple, list)):
            raise TypeError(f"ratios must be a tuple of ratios, got {self.ratios!r}")
        checked = (
            _validate.unit_interval(f"ratios[{at}]", ratio) for at, ratio in enumerate(self.ratios)
        )
        self._set("ratios", tuple(checked))

    @classmethod
    def code(cls, ratio: float, epochs: int) -> Self:
        """Return the warm-up of the authors' code, which differs from that of the paper.

        Epoch e has the ratio ``max(c ** (e + 1), ratio)`` with ``c = ratio ** (1 / (epochs + 1))``:
        for 0.001 over 5 epochs, 0.316, 0.1, 0.0316, 0.01 and 0.00316.

        Parameters
        ----------
        ratio : float
            Ratio of the codec.
        epochs : int
            Length of the warm-up.
        """
        ratio = _validate.unit_interval("ratio", ratio)
        epochs = _validate.integer("epochs", epochs, low=0, high=10_000)
        factor = ratio ** (1.0 / (epochs + 1))
        return cls(tuple(max(factor ** (epoch + 1), ratio) for epoch in range(epochs)))

    @property
    def last(self) -> int:
        """The first epoch of those that have the same codec for good."""
        return len(self.ratios)

    def codec_at(self, codec: Codec, epoch: int) -> Codec | None:
        """Return the codec for an epoch.

        Raises
        ------
        ValueError
            The codec has no ratio.
        """
        own = ratio_of(codec)
        if epoch >= len(self.ratios):
            return codec
        return with_ratio(codec, max(self.ratios[epoch], own))
