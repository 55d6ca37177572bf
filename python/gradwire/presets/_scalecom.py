"""ScaleCom."""

from gradwire import _validate
from gradwire.codec import Codec
from gradwire.exchange import LeaderIndices
from gradwire.memory import LowPass
from gradwire.presets._preset import EXACT, preset
from gradwire.quantize import Quantizer
from gradwire.sparsify import ChunkTopK

__all__ = ["scalecom"]


@preset(
    summary="the largest entry of each chunk, selected by one rank in turn for all",
    paper="Chen, Ni, Lu, Cui, Chen, Sun, Wang, Venkataramani, Srinivasan, Zhang, Gopalakrishnan: "
    "ScaleCom: Scalable Sparsified Gradient Compression for Communication-Efficient Distributed "
    "Training, NeurIPS 2020",
    example={"ratio": 0.02},
)
def scalecom(
    ratio: float | None = None,
    *,
    chunk: int | None = None,
    beta: float = 1.0,
    quantize: Quantizer = EXACT,
) -> Codec:
    """Send the largest entry of each chunk, selected by one rank in turn for all ranks.

    The number of bytes sent and received does not grow with the number of ranks. The paper trains
    the first epochs without compression; see `gradwire.schedule.DenseWarmUp`.

    Parameters
    ----------
    ratio : float, optional
        Fraction of entries to send: a chunk has ``round(1 / ratio)`` entries.
    chunk : int, optional
        Entries per chunk. Give either ``ratio`` or ``chunk``.
    beta : float
        Filter coefficient of the residual, see `gradwire.memory.LowPass`. The default
        of 1 is plain error feedback. The paper uses 0.1 for very large batches, where high
        learning rates make the residuals of the ranks drift apart. With ordinary batch sizes,
        values below 1 cost accuracy, because most of what is not sent is lost.
    quantize
        How values are coded. They are summed as coded, so this must be a float type.

    References
    ----------
    Chen, Ni, Lu, Cui, Chen, Sun, Wang, Venkataramani, Srinivasan, Zhang, Gopalakrishnan, "ScaleCom:
    Scalable Sparsified Gradient Compression for Communication-Efficient Distributed Training",
    NeurIPS 2020.
    """
    if (ratio is None) == (chunk is None):
        raise TypeError(
            f"scalecom takes either ratio= or chunk=, got ratio={ratio!r} and chunk={chunk!r}"
        )
    if ratio is not None:
        chunk = round(1 / _validate.unit_interval("ratio", ratio))
    assert chunk is not None
    return Codec(
        sparsify=ChunkTopK(chunk),
        quantize=quantize,
        memory=LowPass(beta),
        exchange=LeaderIndices(),
    )
