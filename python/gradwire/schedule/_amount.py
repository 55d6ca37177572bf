"""Codecs that differ in how much they send."""

import dataclasses
from typing import Any

from gradwire.codec import Codec

__all__ = ["ratio_of", "with_ratio"]


def ratio_of(codec: Codec) -> float:
    """Return the ratio of a codec's sparsifier.

    Raises
    ------
    ValueError
        It has none.
    """
    ratio: float | None = getattr(codec.sparsify, "ratio", None)
    if ratio is None:
        raise ValueError(
            f"the schedule changes the ratio, but {codec.sparsify!r} has none; pass ratio= to it, "
            "or use a schedule that takes codecs instead of ratios"
        )
    return ratio


def with_ratio(codec: Codec, ratio: float) -> Codec:
    """Return the codec with another ratio."""
    ratio_of(codec)
    sparsify: Any = codec.sparsify
    return dataclasses.replace(codec, sparsify=dataclasses.replace(sparsify, ratio=ratio))
