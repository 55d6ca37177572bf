"""Warns if each rank receives more bytes of frames than an uncompressed all-reduce would send."""

import dataclasses
from collections.abc import Sequence

from gradwire._codec import Codec
from gradwire.exchange import AllReduce, Exchange
from gradwire.exchange.owners import owners_for
from gradwire.report.text import size
from gradwire.sparsify import ChunkTopK, TopK

_MARGIN = 1.05
"""Headers of small frames, and limits a little above what is sent, are no reason to warn."""


def excess(
    sent: Sequence[tuple[Codec, int]],
    exchange: Exchange,
    ranks: int,
    *,
    divisible: bool = True,
    alone: bool = True,
) -> str:
    """Return a warning if frames exceed an uncompressed all-reduce, with advice; else empty.

    ``sent`` has the codec and the number of entries of each compressed parameter, and ``exchange``
    is their exchange among ``ranks`` ranks. The advice depends on whether buckets are ``divisible``
    among all ranks, and whether each rank is ``alone`` where there could be nodes.
    """
    if not (exchange.gathers_frames or exchange.divides):
        return ""  # sums, which are no longer than the values
    frames = sum(frame_nbytes(codec, numel) for codec, numel in sent)
    share = (ranks - 1) / ranks
    dense = 2 * share * sum(4 * numel for _, numel in sent)
    received = frames * (ranks - 1 if exchange.gathers_frames else 2 * share)
    if received <= _MARGIN * dense:
        return ""
    codecs = list(dict.fromkeys(codec for codec, _ in sent))
    remedies = []
    if exchange.gathers_frames and 2 * share * frames <= _MARGIN * dense:
        remedies += _other_exchanges(codecs, divisible)
    if any(getattr(codec.sparsify, "ratio", None) is not None for codec in codecs):
        remedies.append("a smaller ratio")
    if exchange.gathers_frames:
        remedies += ["hierarchy=, if ranks share a machine"] if alone else []
        remedies.append("a codec whose values are summed, such as gradwire.scalecom(ratio=0.01)")
    return (
        f"With {ranks} ranks, each receives {size(received)} of frames per step, while a dense "
        f"all-reduce would bring it {size(dense)}. What helps: "
        f"{'; or '.join(remedies) or 'training without gradwire'}"
    )


def frame_nbytes(codec: Codec, numel: int) -> int:
    """Return the approximate bytes of a frame; 0 if they depend on the gradients."""
    sparsify = codec.sparsify
    if not (sparsify.shared or isinstance(sparsify, TopK | ChunkTopK)):
        ratio = getattr(sparsify, "ratio", None)
        if ratio is None:
            return 0
        # The sparsifier aims at this number of entries, a closer estimate than the bound.
        try:
            codec = dataclasses.replace(codec, sparsify=TopK(ratio=ratio))
        except ValueError:
            return 0
    return codec.max_encoded_len(numel)


def _other_exchanges(codecs: Sequence[Codec], divisible: bool) -> list[str]:
    """Return the exchange to use instead of an all-gather, if one suits all codecs."""
    found: set[Exchange | None] = set()
    for codec in codecs:
        parts = codec.sparsify, codec.quantize
        other: Exchange | None = AllReduce()
        try:
            AllReduce().check(*parts)
        except ValueError:
            other = owners_for(*parts, codec.memory) if divisible else None
        found.add(other)
    return [f"exchange={each!r}" for each in found if each is not None] if len(found) == 1 else []
