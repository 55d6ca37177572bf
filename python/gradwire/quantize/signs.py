"""Values as signs, with one or two magnitudes."""

import dataclasses
import math
from collections.abc import Sequence
from typing import ClassVar, Literal, Self

from gradwire._validate import Clip, Entries, Seed
from gradwire.quantize.base import Codes
from gradwire.sparsify.base import Sparsifier

_OWN = ("mean", "rms")  # scales that follow from the values; the sparsifier provides the others


@dataclasses.dataclass(frozen=True, repr=False)
class SignScale(Codes):
    """1 bit: the sign. All entries of a frame share one magnitude.

    The quantizer is biased; a codec without a memory issues a warning. Zeros count as positive.
    Costs a second read of the tensor if every entry is sent.

    Parameters
    ----------
    scale : {"mean", "rms", "bin-max", "threshold"}
        The magnitude: the mean of the entries' magnitudes; the root of their mean square; the mean
        of the largest magnitudes of all bins, with `gradwire.sparsify.BinMax`; the threshold, with
        `gradwire.sparsify.Threshold`. The codec refuses the last two with other sparsifiers.

    References
    ----------
    Karimireddy, Rebjock, Stich, Jaggi, "Error Feedback Fixes SignSGD and other Gradient Compression
    Schemes", ICML 2019: ``"mean"``.

    Tang et al., "1-bit Adam: Communication Efficient Large-Scale Training with Adam's Convergence
    Speed", ICML 2021: ``"rms"``.

    Chen et al., "AdaComp: Adaptive Residual Gradient Compression for Data-Parallel Distributed
    Training", AAAI 2018: ``"bin-max"``.

    Strom, "Scalable Distributed DNN Training Using Commodity GPU Cloud Computing", Interspeech
    2015: ``"threshold"``.
    """

    scale: Literal["mean", "rms", "bin-max", "threshold"] = "mean"
    kind: ClassVar[str] = "sign_scale"
    needs_memory: ClassVar[bool] = True

    def check(self, sparsify: Sparsifier) -> None:
        """Refuse sparsifiers without the magnitude of this scale."""
        if self.scale not in _OWN and self.scale != sparsify.magnitude:
            raise ValueError(
                f"SignScale(scale={self.scale!r}) takes its magnitude from the sparsifier, but "
                f"{type(sparsify).__name__} has none; use scale='mean'"
            )


@dataclasses.dataclass(frozen=True, repr=False)
class TwoMeans(Codes):
    """1 bit: each entry becomes the mean of the entries of the same sign in its column.

    A column is a run of consecutive positions in the flat tensor; for a weight of shape (out, in),
    the weights of one output. Entries >= 0 share one mean and entries < 0 the other, both computed
    in float64 over the entries of the column that are sent. For this split no other two values have
    a smaller squared error. The quantizer is biased; a codec without a memory issues a warning.

    Costs one more read of the values, from the cache for columns of up to 65536 entries. A frame
    has eight bytes per column.

    Parameters
    ----------
    column : int or None
        Positions per column, 1 to 2**32 - 1. None derives it from the shape in
        `gradwire.Codec.for_shape`: the product of all dimensions but the first, or all entries of a
        flat tensor.

    References
    ----------
    Seide, Fu, Droppo, Li, Yu, "1-Bit Stochastic Gradient Descent and its Application to
    Data-Parallel Distributed Training of Speech DNNs", Interspeech 2014.

    Dryden, Jacobs, Moon, Van Essen, "Communication Quantization for Data-parallel Training of Deep
    Neural Networks", MLHPC 2016.
    """

    column: Entries | None = None
    kind: ClassVar[str] = "two_means"
    needs_memory: ClassVar[bool] = True

    def for_shape(self, shape: Sequence[int]) -> Self:
        """Return the part with the column for tensors of this shape, if none was given."""
        if self.column is not None:
            return self
        return dataclasses.replace(self, column=max(1, math.prod(shape[1:] or shape)))


@dataclasses.dataclass(frozen=True, repr=False)
class Ternary(Codes):
    """2 bits: zero or plus or minus one magnitude, rounded stochastically.

    The magnitude M is the largest magnitude after clipping. An entry of magnitude m becomes M with
    probability m / M and zero otherwise, so rounding is unbiased for the clipped values. The error
    is larger than a memory can feed back, and a codec with both is refused. Costs a second read of
    the tensor if every entry is sent.

    Parameters
    ----------
    clip : float or None
        Clip at this many standard deviations of the values, above 0; 2.5 in the paper, None for
        no clipping. Values that are all equal are not clipped.
    seed : int
        Seed of the random numbers, 0 to 2**63 - 1. They also depend on the name of the tensor, the
        step and the stream of the `gradwire.State`.

    References
    ----------
    Wen, Xu, Yan, Wu, Wang, Chen, Li, "TernGrad: Ternary Gradients to Reduce Communication in
    Distributed Deep Learning", NeurIPS 2017, section 3.
    """

    clip: Clip | None = 2.5
    seed: Seed = 0
    kind: ClassVar[str] = "ternary"
    contracts: ClassVar[bool] = False  # of entries well below M the error is larger than they are

    @property
    def _contracting(self) -> str:
        return 'use Uniform(3, norm="max")'
