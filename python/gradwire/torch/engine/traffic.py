"""What frames bring each rank in a step, beside what a dense all-reduce would."""

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
    """Return how frames exceed a dense all-reduce, and what to do, in a warning; empty if not.

    ``sent`` has the codec and the entries of each compressed parameter, and ``exchange`` is theirs
    among so many ranks. What to do depends on whether buckets are ``divisible`` among all of them,
    and whether each rank is ``alone``, where there could be nodes.
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
        f"With {ranks} ranks, each receives {size(received)} of frames per step, and a dense "
        f"all-reduce would bring it {size(dense)}. What helps: "
        f"{'; or '.join(remedies) or 'to leave gradwire out'}"
    )


def frame_nbytes(codec: Codec, numel: int) -> int:
    """Return about how many bytes a frame has; 0 if only the gradients tell."""
    sparsify = codec.sparsify
    if not (sparsify.shared or isinstance(sparsify, TopK | ChunkTopK)):
        ratio = getattr(sparsify, "ratio", None)
        if ratio is None:
            return 0
        # It aims at as many entries as this, of which the limit is closer.
        try:
            codec = dataclasses.replace(codec, sparsify=TopK(ratio=ratio))
        except ValueError:
            return 0
    return codec.max_encoded_len(numel)


def _other_exchanges(codecs: Sequence[Codec], divisible: bool) -> list[str]:
    """Return the exchange to take in place of an all-gather, if there is one for all codecs."""
    found: set[Exchange | None] = set()
    for codec in codecs:
        parts = codec.sparsify, codec.quantize
        other: Exchange | None = AllReduce() if codec.memory.undoable else None
        try:
            AllReduce().check(*parts)
        except ValueError:
            other = owners_for(*parts, codec.memory) if divisible else None
        found.add(other)
    return [f"exchange={each!r}" for each in found if each is not None] if len(found) == 1 else []
