"""No compression in the first epochs."""

import dataclasses
from typing import ClassVar

from gradwire import _validate
from gradwire.codec import Codec
from gradwire.schedule.base import Schedule

__all__ = ["DenseWarmUp"]


@dataclasses.dataclass(frozen=True, repr=False)
class DenseWarmUp(Schedule):
    """No compression in the first epochs, then the codec.

    Gradients are sent dense in their own dtype, as small parameters always are, and residuals stay
    empty. With `gradwire.memory.MomentumCorrection` use `WarmUp` instead: the momentum is kept in
    the codec's memory, which is not used in these epochs.

    Parameters
    ----------
    epochs : int
        Number of epochs without compression.

    References
    ----------
    Chen et al., "ScaleCom: Scalable Sparsified Gradient Compression for Communication-Efficient
    Distributed Training", NeurIPS 2020, section 4: up to a tenth of the epochs.

    Seide, Fu, Droppo, Li, Yu, "1-bit Stochastic Gradient Descent and its Application to
    Data-Parallel Distributed Training of Speech DNNs", Interspeech 2014: the first part of the
    data.
    """

    epochs: int
    kind: ClassVar[str] = "dense_warm_up"
    by_epoch_alone: ClassVar[bool] = True

    def __post_init__(self) -> None:
        self._set("epochs", _validate.integer("epochs", self.epochs, low=0))

    @property
    def last(self) -> int:
        """The first epoch of those that have the same codec for good."""
        return self.epochs

    def codec_at(self, codec: Codec, epoch: int) -> Codec | None:
        """Return the codec for an epoch, or None for an epoch without compression."""
        return None if epoch < self.epochs else codec
