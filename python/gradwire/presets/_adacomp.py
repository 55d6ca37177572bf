"""AdaComp."""

from gradwire.codec import Codec
from gradwire.memory import Memory
from gradwire.presets._preset import KEEP, preset
from gradwire.quantize import SignScale
from gradwire.sparsify import BinMax

__all__ = ["adacomp"]


@preset(
    summary="entries near the maximum of their bin, as signs and one magnitude",
    paper="Chen, Choi, Brand, Agrawal, Zhang, Gopalakrishnan: AdaComp : Adaptive Residual Gradient "
    "Compression for Data-Parallel Distributed Training, AAAI 2018",
    example={},
)
def adacomp(bin: int | None = None, *, soft: float = 2.0, memory: Memory = KEEP) -> Codec:
    """Send the entries of each bin that pass AdaComp's soft threshold, as signs and one magnitude.

    How many are sent depends on the data: about 5 entries per bin of 50 and 6 per bin of 500 if
    gradients are homogeneous, fewer if only a few matter. The paper counts 8 or 16 bits per sent
    entry, including its position in the bin; frames take about 6 and 10.

    Parameters
    ----------
    bin, soft
        See `gradwire.sparsify.BinMax`. Choosing bins by the kind of layer needs `Codec.for_shape`.
    memory
        What happens to entries that are not sent.

    References
    ----------
    Chen, Choi, Brand, Agrawal, Zhang, Gopalakrishnan, "AdaComp : Adaptive Residual Gradient
    Compression for Data-Parallel Distributed Training", AAAI 2018.
    """
    return Codec(
        sparsify=BinMax(bin, soft=soft), quantize=SignScale(scale="bin-max"), memory=memory
    )
