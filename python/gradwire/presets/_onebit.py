"""1-bit SGD."""

from gradwire.codec import Codec
from gradwire.memory import Memory
from gradwire.presets._preset import KEEP, Preset
from gradwire.quantize import TwoMeans
from gradwire.sparsify import All

__all__ = ["PRESET", "onebit"]


def onebit(*, column: int | None = None, memory: Memory = KEEP) -> Codec:
    """Send one bit for every entry: the mean of its column's entries of its sign.

    Parameters
    ----------
    column
        See `gradwire.quantize.TwoMeans`; None takes it from the shape of each tensor, by
        `gradwire.Codec.for_shape`.
    memory
        What happens to the rest.

    References
    ----------
    Seide, Fu, Droppo, Li, Yu, "1-Bit Stochastic Gradient Descent and its Application to
    Data-Parallel Distributed Training of Speech DNNs", Interspeech 2014.
    """
    return Codec(sparsify=All(), quantize=TwoMeans(column=column), memory=memory)


PRESET = Preset(
    name="onebit",
    build=onebit,
    summary="one bit an entry, two means a column, the error kept for later",
    paper="Seide, Fu, Droppo, Li, Yu: 1-Bit Stochastic Gradient Descent and its Application to "
    "Data-Parallel Distributed Training of Speech DNNs, Interspeech 2014",
    example={"column": 128},
)
