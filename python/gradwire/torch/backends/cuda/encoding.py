"""Encodes and decodes parts of a flat tensor with kernels: single tensors or buckets."""

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray

from gradwire._codec import Codec
from gradwire.torch.backends.cuda.operators import operators
from gradwire.torch.backends.cuda.states import DeviceState, Encoding, on_device
from gradwire.torch.backends.staging import naming_loss, staging

PLACE, ADD, RANKS, SENDERS = range(4)  # what becomes of decoded values: see csrc/bucket/decode.h
# Devices that have met a frame of drawn positions: these take more memory to read.
_seeded: set[torch.device] = set()


def ends_of(numels: Sequence[int]) -> list[int]:
    """Return the starts and stops, alternating, of parts of these lengths one after another."""
    ends: list[int] = np.repeat(np.cumsum([0, *numels]), 2)[1:-1].tolist()
    return ends


def encode(
    codecs: Sequence[Codec],
    states: Sequence[DeviceState],
    ends: Sequence[int],
    limits: Sequence[int],
    gradients: torch.Tensor,
    scale: float,
    out: torch.Tensor,
) -> NDArray[np.int64]:
    """Encode parts of a flat tensor on the current stream, and wait for the outcomes.

    Returns a row for each part: bytes, entries sent, entries asked for or -1, entries trimmed, and
    whether all of the input was zero. Fewer rows than parts if one failed: encode that part on the
    host for the error.
    """
    started = start(codecs, states, ends, limits, gradients, scale, out)
    return started.outcomes(staging(gradients.device).read(started.table).numpy())


def start(
    codecs: Sequence[Codec],
    states: Sequence[DeviceState],
    ends: Sequence[int],
    limits: Sequence[int],
    gradients: torch.Tensor,
    scale: float,
    out: torch.Tensor,
    positions: Sequence[NDArray[np.uint32] | None] = (),
) -> Encoding:
    """Start to encode parts of a flat tensor, on the current stream.

    The frames are concatenated in `out`: bytes on the device, aligned to 16, with room for all
    limits. Positions may be given for each part; where None, the codec selects.
    """
    if positions and all(chosen is None for chosen in positions):
        positions = ()
    chosen_before = [chosen is not None for chosen in positions]
    plan = states[0].plans.of(codecs, ends, gradients, chosen_before)
    most = plan.most
    if positions:
        most = [
            bound if chosen is None else codec._codec.max_encoded_len(numel, chosen.size)
            for bound, codec, numel, chosen in zip(
                most, codecs, plan.numels, positions, strict=True
            )
        ]
    limits = list(map(min, limits, most))
    with naming_loss(gradients.device), on_device(states, gradients.device, plan.shared):
        table = plan.encode(gradients, limits, plan.shared, scale, out, positions)
        return Encoding(states, plan, table)


def is_seeded(device: torch.device) -> bool:
    """Tell whether a device has decoded a frame of random positions."""
    return device in _seeded


def decode(
    out: torch.Tensor,
    data: torch.Tensor,
    ends: Sequence[int],
    starts: Sequence[int],
    sizes: Sequence[int],
    ranks: int,
    into: int,
    scale: float,
    over: int = 0,
) -> bool:
    """Decode on the current stream, wait, and tell whether all frames could be read.

    Means are over ``ranks`` ranks, or with 0 over the ranks that sent an entry. If a frame could
    not be read, nothing is written: decode on the host, for the error or because kernels do not
    support it.
    """
    if any(start + size > data.numel() for start, size in zip(starts, sizes, strict=True)):
        return False
    stage = staging(out.device)
    for seeded in (True,) if out.device in _seeded else (False, True):
        with naming_loss(out.device):
            verdicts = operators().decode_bucket(
                out, data, list(ends), list(starts), list(sizes), ranks, into, scale, seeded, over
            )
        if not int(stage.read(verdicts[:1])):
            if seeded:
                _seeded.add(out.device)
            return True
    return False
