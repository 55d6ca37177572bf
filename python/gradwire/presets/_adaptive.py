"""Adaptive quantization."""

from gradwire.codec import Codec
from gradwire.exchange import Exchange
from gradwire.memory import Memory
from gradwire.presets._preset import GATHER, KEEP, preset
from gradwire.quantize import TwoMeans
from gradwire.sparsify import TwoSided

__all__ = ["adaptive"]


@preset(
    summary="a fixed proportion of the entries, one bit each and two means per column",
    paper="Dryden, Jacobs, Moon, Van Essen: Communication Quantization for Data-Parallel Training "
    "of Deep Neural Networks, MLHPC 2016",
    example={},
)
def adaptive(
    proportion: float = 32.0,
    *,
    sample: int | None = 1024,
    seed: int = 0,
    column: int | None = None,
    memory: Memory = KEEP,
    exchange: Exchange = GATHER,
) -> Codec:
    """Send about one entry in ``proportion``, with one bit per entry and two means per column.

    The paper sends all that is left after each epoch; `Codec.flush` does that.

    Parameters
    ----------
    proportion, sample, seed
        See `gradwire.sparsify.TwoSided`.
    column
        See `gradwire.quantize.TwoMeans`. Columns that follow the tensor's shape need
        `Codec.for_shape`. Each column costs eight bytes, so it should have many times
        ``proportion`` entries.
    memory
        What happens to entries that are not sent.
    exchange
        How ranks combine their frames. `gradwire.exchange.QuantizedAllReduce` is for many of them.

    References
    ----------
    Dryden, Jacobs, Moon, Van Essen, "Communication Quantization for Data-Parallel Training of Deep
    Neural Networks", MLHPC 2016.
    """
    return Codec(
        sparsify=TwoSided(proportion, sample=sample, seed=seed),
        quantize=TwoMeans(column),
        memory=memory,
        exchange=exchange,
    )
