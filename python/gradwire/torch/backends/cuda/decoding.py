"""Frames that kernels read: into parts of a flat tensor, if all of them are good."""

from collections.abc import Sequence

import torch

from gradwire.torch.backends.cuda.operators import operators
from gradwire.torch.backends.host.staging import staging

__all__ = ["ADD", "PLACE", "RANKS", "SENDERS", "decode"]

PLACE, ADD, RANKS, SENDERS = range(4)
"""What becomes of decoded values: see csrc/bucket/decode.h."""

_seeded: set[torch.device] = set()
"""Devices that have met a frame of drawn positions: these take more memory to read."""


def decode(
    out: torch.Tensor,
    data: torch.Tensor,
    ends: Sequence[int],
    starts: Sequence[int],
    sizes: Sequence[int],
    ranks: int,
    into: int,
    scale: float,
) -> bool:
    """Decode on the current stream; wait, and tell whether all frames could be read.

    If one could not be, nothing is written, and the host's decoder says why, or reads what kernels
    do not read.
    """
    if any(start + size > data.numel() for start, size in zip(starts, sizes, strict=True)):
        return False
    stage = staging(out.device)
    for seeded in (out.device in _seeded, True):
        verdicts = operators().decode_bucket(
            out, data, list(ends), list(starts), list(sizes), ranks, into, scale, seeded
        )
        if not int(stage.read(verdicts[:1])):
            if seeded:
                _seeded.add(out.device)
            return True
        if seeded:
            break
    return False
