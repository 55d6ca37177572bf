"""Kernels that cut frames into ranges, one per owner: as ``rust/core/src/frame/split.rs``."""

from collections.abc import Sequence
from itertools import accumulate, pairwise

import torch

from gradwire._codec import Codec
from gradwire.torch.backends.cuda.operators import completed, operators
from gradwire.torch.backends.cuda.states import NBYTES
from gradwire.torch.backends.host import staging


def split(
    codecs: Sequence[Codec],
    frames: torch.Tensor,
    sizes: Sequence[int],
    counts: Sequence[int],
    bounds: Sequence[Sequence[int]],
    owners: Sequence[Sequence[int]],
    ranks: int,
) -> list[torch.Tensor] | None:
    """Cut frames on the device, on the current stream, as `Bucket.split`; wait for the sizes.

    None if kernels cannot read a frame, as with sections that only the host codes.
    """
    cuts: list[list[tuple[int, int, int]]] = [[] for _ in range(ranks)]  # of each owner
    for frame, (ends, whose) in enumerate(zip(bounds, owners, strict=True)):
        for owner, start, stop in zip(whose, ends[:-1], ends[1:], strict=True):
            cuts[owner].append((frame, start, stop))
    every = [cut for own in cuts for cut in own]
    parts, table, verdicts = operators().split_bucket(
        completed(codecs, [ends[-1] for ends in bounds]),
        *(frames, list(sizes), list(counts)),
        *([frame for frame, _, _ in every], [end for _, *pair in every for end in pair]),
        any(codec.sparsify.kind == "random_k" for codec in codecs),
    )
    rows, failed = staging(frames.device).read_all([table, verdicts[:1]])
    if int(failed):
        return None
    lengths = rows.numpy()[:, NBYTES].reshape(-1, 2).sum(1).tolist()  # of each range
    stops = [0, *accumulate(lengths)]
    firsts = [0, *accumulate(map(len, cuts))]
    return [parts[stops[first] : stops[beyond]] for first, beyond in pairwise(firsts)]
