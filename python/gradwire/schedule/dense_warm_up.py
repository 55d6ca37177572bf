"""Nothing compressed at first."""

import dataclasses
from typing import ClassVar

from gradwire import _validate
from gradwire._part import Part
from gradwire.codec import Codec

__all__ = ["DenseWarmUp"]


@dataclasses.dataclass(frozen=True, repr=False)
class DenseWarmUp(Part):
    """No compression in the first epochs, then the codec.

    Gradients travel whole and in their own dtype, as small parameters always do; residuals stay
    empty. With `gradwire.memory.MomentumCorrection` use `WarmUp` instead: the momentum is in the
    codec's memory, which has no part in these epochs.

    Parameters
    ----------
    epochs : int
        How many.

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

    def __post_init__(self) -> None:
        self._set("epochs", _validate.integer("epochs", self.epochs, low=0))

    def codec_at(self, codec: Codec, epoch: int) -> Codec | None:
        """Return the codec of an epoch, or None for one without compression."""
        return None if epoch < self.epochs else codec
