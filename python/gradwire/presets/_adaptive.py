"""Adaptive quantization."""

from gradwire.codec import Codec
from gradwire.memory import Memory
from gradwire.presets._preset import KEEP, Preset
from gradwire.quantize import TwoMeans
from gradwire.sparsify import TwoSided

__all__ = ["PRESET", "adaptive"]


def adaptive(
    proportion: float = 32.0,
    *,
    sample: int | None = 1024,
    seed: int = 0,
    column: int | None = None,
    memory: Memory = KEEP,
) -> Codec:
    """Send about one entry in ``proportion``, as one bit each and two means for each column.

    `Codec.flush` sends what is left, which the paper does after each epoch.

    Parameters
    ----------
    proportion, sample, seed
        See `gradwire.sparsify.TwoSided`.
    column
        See `gradwire.quantize.TwoMeans`. Columns of the tensor need `Codec.for_shape`. A column
        costs eight bytes: it should have many times ``proportion`` entries.
    memory
        What happens to the rest.

    References
    ----------
    Dryden, Jacobs, Moon, Van Essen, "Communication Quantization for Data-Parallel Training of Deep
    Neural Networks", MLHPC 2016.
    """
    return Codec(
        sparsify=TwoSided(proportion, sample=sample, seed=seed),
        quantize=TwoMeans(column),
        memory=memory,
    )


PRESET = Preset(
    name="adaptive",
    build=adaptive,
    summary="one entry in a proportion, one bit each, two means a column",
    paper="Dryden, Jacobs, Moon, Van Essen: Communication Quantization for Data-Parallel Training "
    "of Deep Neural Networks, MLHPC 2016",
    example={},
)
