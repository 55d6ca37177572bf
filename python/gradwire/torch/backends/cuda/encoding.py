"""Encodes and decodes parts of a flat tensor by kernels: single tensors and buckets alike."""

from collections.abc import Sequence
from contextlib import ExitStack
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from gradwire._codec import Codec
from gradwire.errors import InputChangedError
from gradwire.torch.backends.cuda.operators import completed, operators
from gradwire.torch.backends.cuda.states import DeviceState
from gradwire.torch.backends.host import staging, told

PLACE, ADD, RANKS, SENDERS = range(4)  # what becomes of decoded values: see csrc/bucket/decode.h
_DONE, _CHANGED = range(2)  # what comes of a second half, as csrc/bucket/decode.h numbers it
# The columns of the table, as csrc/bucket/gather.h numbers them.
_STATUS, _NBYTES, _COUNT, _TARGET, _TRIMMED, _ZERO, _THRESHOLD = range(7)
# Devices that have met a frame of drawn positions: these take more memory to read.
_seeded: set[torch.device] = set()


def encode(
    codecs: Sequence[Codec],
    states: Sequence[DeviceState],
    ends: Sequence[int],
    limits: Sequence[int],
    gradients: torch.Tensor,
    scale: float,
    out: torch.Tensor,
    positions: Sequence[NDArray[np.uint32] | None] = (),
    *,
    deferred: bool = False,
) -> NDArray[np.int64]:
    """Encode parts of a flat tensor on the current stream, and wait for the outcomes.

    The frames are written to `out` one after another: bytes on the device, from a multiple of 16,
    with room for all limits. Positions may be given, of each part or None; without, the codecs
    select. Memories, which have one buffer each then, may be written `deferred`, by `commit`.

    Returns a row for each part: bytes, entries sent, entries asked for or -1, entries trimmed, and
    whether all of the input was zero. Fewer rows than there are parts if one failed: the host's
    encode of that part says why.
    """
    device = gradients.device
    with told(device), ExitStack() as stack:
        tensors = [stack.enter_context(state.on_device(device)) for state in states]
        given = [each is not None for each in positions]
        if not any(given):
            positions, given = (), []
        plan = states[0].plans.of(codecs, ends, gradients, given)
        most = list(plan.most)
        for i, each in enumerate(positions):
            if each is not None:
                most[i] = codecs[i]._codec.max_encoded_len(plan.numels[i], each.size)
        limits = [min(pair) for pair in zip(limits, most, strict=True)]
        table = plan.encode(gradients, limits, tensors, scale, out, positions, deferred=deferred)
        rows: NDArray[np.int64] = staging(device).read(table).numpy()
        failed = np.flatnonzero(rows[:, _STATUS])
        done = int(failed[0]) if failed.size else len(rows)
        thresholds = rows[:, _THRESHOLD].astype(np.uint32).view(np.float32)
        for i, state in enumerate(states):
            if i < done:
                state.encoded(codecs[i], _last(rows[i], float(thresholds[i])), deferred=deferred)
            else:
                state.failed()
    return rows[:done, [_NBYTES, _COUNT, _TARGET, _TRIMMED, _ZERO]]


def commit(
    states: Sequence[DeviceState],
    starts: Sequence[int],
    gradients: torch.Tensor,
    frames: torch.Tensor,
    offsets: Sequence[int],
    sizes: Sequence[int],
    scale: float,
) -> None:
    """Write the memories of parts of a flat tensor that were encoded with `deferred`, and wait.

    Parts begin at `starts`, and their frames, in bytes on the device, at `offsets`.
    """
    device = gradients.device
    with told(device), ExitStack() as stack:
        tensors = [stack.enter_context(state.on_device(device)) for state in states]
        codecs = [state.codec for state in states]
        drawn = any(codec.sparsify.kind == "random_k" for codec in codecs)
        outcomes = operators().settle_bucket(
            completed(codecs, [state.numel for state in states]),
            *(gradients, starts, tensors, frames, offsets, sizes, scale, drawn),
        )
        found = staging(device).read(outcomes).tolist()
        for state, outcome in zip(states, found, strict=True):
            state.committed(done=outcome == _DONE)
    for state, outcome in zip(states, found, strict=True):
        if outcome == _CHANGED:
            raise InputChangedError(state.name)
        if outcome != _DONE:
            raise ValueError("the frame is not the one that encode_later has written")


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
    for seeded in (True,) if out.device in _seeded else (False, True):
        with told(out.device):
            verdicts = operators().decode_bucket(
                out, data, list(ends), list(starts), list(sizes), ranks, into, scale, seeded
            )
        if not int(stage.read(verdicts[:1])):
            if seeded:
                _seeded.add(out.device)
            return True
    return False


def _last(row: NDArray[np.int64], threshold: float) -> dict[str, Any]:
    target = int(row[_TARGET])
    return {
        "count": int(row[_COUNT]),
        "target": None if target < 0 else target,
        "threshold": threshold,
        "trimmed": int(row[_TRIMMED]),
    }
