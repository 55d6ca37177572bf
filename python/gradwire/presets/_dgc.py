"""Deep Gradient Compression."""

from gradwire.codec import Codec
from gradwire.memory import MomentumCorrection
from gradwire.presets._preset import EXACT, preset
from gradwire.quantize import Quantizer
from gradwire.sparsify import SampledTopK

__all__ = ["dgc"]


@preset(
    summary="the largest entries after momentum correction, found by sampling",
    paper="Lin, Han, Mao, Wang, Dally: Deep Gradient Compression: Reducing the Communication "
    "Bandwidth for Distributed Training, ICLR 2018",
    example={"ratio": 0.01},
)
def dgc(
    ratio: float,
    *,
    momentum: float = 0.9,
    nesterov: bool = False,
    masking: bool = True,
    clip: float | None = None,
    sample_ratio: float = 0.01,
    quantize: Quantizer = EXACT,
) -> Codec:
    """Send the largest entries of the momentum-corrected gradient, found by sampling.

    The codec applies the momentum: give `gradwire.torch.optim.SGD` the same ``momentum=``, which it
    does not apply again. Warm up the ratio with `gradwire.schedule.WarmUp`.

    Parameters
    ----------
    ratio, sample_ratio
        See `gradwire.sparsify.SampledTopK`.
    momentum, nesterov, masking, clip
        See `gradwire.memory.MomentumCorrection`; ``clip`` applies to the norm of each tensor,
        while the paper clips the norm of the node's whole gradient.
    quantize
        How values are coded.

    References
    ----------
    Lin, Han, Mao, Wang, Dally, "Deep Gradient Compression: Reducing the Communication Bandwidth for
    Distributed Training", ICLR 2018.
    """
    return Codec(
        sparsify=SampledTopK(ratio, sample_ratio=sample_ratio),
        quantize=quantize,
        memory=MomentumCorrection(momentum=momentum, nesterov=nesterov, masking=masking, clip=clip),
    )
