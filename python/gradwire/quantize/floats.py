"""Values as floating-point numbers."""

import dataclasses
from typing import ClassVar, Literal

from gradwire._validate import Entries, Seed64
from gradwire.quantize.base import Codes, Quantizer


@dataclasses.dataclass(frozen=True, repr=False)
class Float32(Quantizer):
    """32 bits, exact for float32, float16 and bfloat16 tensors."""

    kind: ClassVar[str] = "float32"
    summed_as: ClassVar[str | None] = "float32"
    contracts: ClassVar[bool] = True
    needs_memory: ClassVar[bool] = False


@dataclasses.dataclass(frozen=True, repr=False)
class BFloat16(Quantizer):
    """16 bits: the range of float32 with 8 bits of precision; saturates instead of overflowing."""

    kind: ClassVar[str] = "bfloat16"
    summed_as: ClassVar[str | None] = "bfloat16"
    contracts: ClassVar[bool] = True
    needs_memory: ClassVar[bool] = False


@dataclasses.dataclass(frozen=True, repr=False)
class Float16(Quantizer):
    """16 bits: IEEE binary16 with 11 bits of precision; saturates instead of overflowing.

    Parameters
    ----------
    scaled : bool
        Multiply the values of each frame by the largest power of two that does not overflow, which
        keeps small gradients out of the subnormals. Costs one more read of the selected values.
    """

    scaled: bool = True
    kind: ClassVar[str] = "float16"
    contracts: ClassVar[bool] = True
    needs_memory: ClassVar[bool] = False

    @property
    def summed_as(self) -> str | None:
        """float16, unless every rank scales its values by a different factor."""
        return None if self.scaled else "float16"

    @property
    def largest(self) -> float | None:
        """65504, unless values are scaled."""
        return None if self.scaled else 65504.0


@dataclasses.dataclass(frozen=True, repr=False)
class Float8(Codes):
    """8 bits: an Open Compute Project FP8 number times the scale of its block.

    The scale is the smallest power of two that brings the largest magnitude of the block into the
    range of the format, so multiplying by it is exact. Values beyond the largest code (unscaled
    values, and magnitudes within an eighth of the largest float32) saturate: neither infinity nor
    NaN is ever written. Frames are decoded to float32 before they are added, whatever the number of
    ranks. Costs one more read of the values, from the cache.

    Parameters
    ----------
    format : {"e4m3", "e5m2"}
        Four bits of exponent and three of mantissa, from 2**-9 to 448 times the scale; or five and
        two, from 2**-16 to 57344 times the scale.
    rounding : {"nearest", "stochastic"}
        To the nearest code, ties to even; or randomly to one of the two neighbours, without bias,
        which needs a state to seed the random numbers.
    block : int, optional
        Entries per scale, at least 1; a scale takes four bytes. None rounds values as they are.
    seed : int
        Seed of stochastic rounding, 0 to 2**64 - 1.

    References
    ----------
    Micikevicius et al., "FP8 Formats for Deep Learning", arXiv 2022.

    Wang, Choi, Brand, Chen, Gopalakrishnan, "Training Deep Neural Networks with 8-bit Floating
    Point Numbers", NeurIPS 2018: the 1-5-2 format (E5M2) for gradients, and stochastic rounding.

    Rouhani et al., "Microscaling Data Formats for Deep Learning", arXiv 2023, section 3.
    """

    format: Literal["e4m3", "e5m2"] = "e4m3"
    rounding: Literal["nearest", "stochastic"] = "nearest"
    block: Entries | None = 256
    seed: Seed64 = 0
    kind: ClassVar[str] = "float8"

    @property
    def largest(self) -> float | None:
        """448 or 57344, unless values are scaled."""
        if self.block is not None:
            return None
        return 448.0 if self.format == "e4m3" else 57344.0


@dataclasses.dataclass(frozen=True, repr=False)
class Lossless(Quantizer):
    """Floats of 16 or 32 bits, losslessly compressed: exponents are entropy-coded.

    Values are those that `BFloat16`, `Float16` (``scaled=False``) and `Float32` decode to, in seven
    to nine bits, eight to twelve, and about 24 where the largest entries of a tensor are sent; of
    all entries of a tensor in about two thirds of 16 bits and five sixths of 32. Exponent and the
    mantissa's three highest bits are Huffman codes with a table every 65 536 values, sign and the
    rest uncoded. The result is never longer than the floats themselves.

    An all-reduce of values sums the floats themselves, and the kernels for CUDA send them so.

    Parameters
    ----------
    format : {"bfloat16", "float16", "float32"}, optional
        The float to which values are rounded; ``"float32"`` is exact. None: the tensor's own dtype,
        and float32 for float64.

    References
    ----------
    Hershcovitch et al., "ZipNN: Lossless Compression for AI Models", arXiv 2024, section 3; it
    codes the exponent alone.
    """

    format: Literal["bfloat16", "float16", "float32"] | None = None
    kind: ClassVar[str] = "lossless"
    contracts: ClassVar[bool] = True
    needs_memory: ClassVar[bool] = False

    @property
    def plain(self) -> Quantizer:
        """The quantizer that sends the same values uncoded; itself if the format is the tensor's.

        Kernels for CUDA send these.
        """
        plain = {"float32": Float32(), "bfloat16": BFloat16(), "float16": Float16(scaled=False)}
        return self if self.format is None else plain[self.format]

    @property
    def summed_as(self) -> str | None:
        """The float itself; float32 if the format is the tensor's."""
        return self.format or "float32"

    @property
    def largest(self) -> float | None:
        """65504 for float16."""
        return 65504.0 if self.format == "float16" else None
