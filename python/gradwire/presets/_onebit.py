"""1-bit SGD."""

from gradwire.codec import Codec
from gradwire.exchange import Exchange
from gradwire.memory import Memory
from gradwire.presets._preset import GATHER, KEEP, preset
from gradwire.quantize import TwoMeans
from gradwire.sparsify import All

__all__ = ["onebit"]


@preset(
    summary="one bit per entry and two means per column, with error feedback",
    paper="Seide, Fu, Droppo, Li, Yu: 1-Bit Stochastic Gradient Descent and its Application to "
    "Data-Parallel Distributed Training of Speech DNNs, Interspeech 2014",
    example={"column": 128},
)
def onebit(
    *, column: int | None = None, memory: Memory = KEEP, exchange: Exchange = GATHER
) -> Codec:
    """Send one bit per entry, which decodes to the mean of its sign and column.

    Parameters
    ----------
    column
        See `gradwire.quantize.TwoMeans`; None derives it from the shape of each tensor in
        `gradwire.Codec.for_shape`.
    memory
        What happens to the quantization error.
    exchange
        How ranks combine their frames. `gradwire.exchange.QuantizedAllReduce` is for many of them.

    References
    ----------
    Seide, Fu, Droppo, Li, Yu, "1-Bit Stochastic Gradient Descent and its Application to
    Data-Parallel Distributed Training of Speech DNNs", Interspeech 2014.
    """
    return Codec(sparsify=All(), quantize=TwoMeans(column=column), memory=memory, exchange=exchange)
