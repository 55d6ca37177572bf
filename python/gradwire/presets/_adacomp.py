"""AdaComp."""

from gradwire.codec import Codec
from gradwire.memory import Memory
from gradwire.presets._preset import KEEP, Preset
from gradwire.quantize import SignScale
from gradwire.sparsify import BinMax

__all__ = ["PRESET", "adacomp"]


def adacomp(bin: int | None = None, *, soft: float = 2.0, memory: Memory = KEEP) -> Codec:
    """Send of each bin what could soon be its largest, as signs and one magnitude.

    The tensor sets how much that is: some 5 entries of a bin of 50, 6 of a bin of 500, where all
    are alike; fewer where few matter. The paper counts 8 or 16 bits for an entry, with its position
    in the bin; frames take about 6 and 10.

    Parameters
    ----------
    bin, soft
        See `gradwire.sparsify.BinMax`. Bins by the kind of layer need `Codec.for_shape`.
    memory
        What happens to the rest.

    References
    ----------
    Chen, Choi, Brand, Agrawal, Zhang, Gopalakrishnan, "AdaComp : Adaptive Residual Gradient
    Compression for Data-Parallel Distributed Training", AAAI 2018.
    """
    return Codec(
        sparsify=BinMax(bin, soft=soft), quantize=SignScale(scale="bin-max"), memory=memory
    )


PRESET = Preset(
    name="adacomp",
    build=adacomp,
    summary="the largest of each bin and those that soon will be, as signs and one magnitude",
    paper="Chen, Choi, Brand, Agrawal, Zhang, Gopalakrishnan: AdaComp : Adaptive Residual Gradient "
    "Compression for Data-Parallel Distributed Training, AAAI 2018",
    example={},
)
