"""One encode of parts of a flat tensor: what both single tensors and buckets are made of."""

from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray

from gradwire.torch.backends.cuda.operators import operators
from gradwire.torch.backends.cuda.plans import plan_for
from gradwire.torch.backends.cuda.states import State
from gradwire.torch.backends.host.staging import staging

if TYPE_CHECKING:
    from gradwire.codec import Codec

__all__ = ["Outcome", "encode"]

_STATUS, _NBYTES, _COUNT, _TARGET, _TRIMMED, _ZERO, _THRESHOLD = range(7)
"""The columns of the table, as csrc/bucket/gather.h numbers them."""


@dataclass(frozen=True, slots=True, eq=False)
class Outcome:
    """What came of an encode.

    Attributes
    ----------
    frames : torch.Tensor
        uint8, on the device: the frames of the parts that were encoded, one after another.
    nbytes : int
        Their bytes.
    rows : numpy.ndarray
        int64, a row for each of these parts: bytes, entries sent, entries asked for or -1, entries
        trimmed, and whether all of the input was zero. Fewer than there were parts if one failed:
        the host's encode of that part says why.
    """

    frames: torch.Tensor
    nbytes: int
    rows: NDArray[np.int64]


def encode(
    codecs: Sequence["Codec"],
    states: Sequence[State],
    ends: Sequence[int],
    limits: Sequence[int],
    gradients: torch.Tensor,
    scale: float,
) -> Outcome:
    """Encode parts of a flat tensor on the current stream, and wait for the outcomes."""
    plan = plan_for(codecs, ends, gradients)
    device = gradients.device
    limits = [min(pair) for pair in zip(limits, plan.most, strict=True)]
    with ExitStack() as stack:
        tensors = [stack.enter_context(state.on_device(device)) for state in states]
        frames, table = operators().encode_bucket(plan.number, gradients, limits, tensors, scale)
        rows: NDArray[np.int64] = staging(device).read(table).numpy()
        failed = np.flatnonzero(rows[:, _STATUS])
        done = int(failed[0]) if failed.size else len(rows)
        thresholds = rows[:, _THRESHOLD].astype(np.uint32).view(np.float32)
        for i, state in enumerate(states):
            if i < done:
                state.encoded(codecs[i], _last(rows[i], float(thresholds[i])))
            else:
                state.failed()
    kept = rows[:done]
    nbytes = int(kept[:, _NBYTES].sum())
    return Outcome(frames, nbytes, kept[:, [_NBYTES, _COUNT, _TARGET, _TRIMMED, _ZERO]])


def _last(row: NDArray[np.int64], threshold: float) -> dict[str, Any]:
    target = int(row[_TARGET])
    return {
        "count": int(row[_COUNT]),
        "target": None if target < 0 else target,
        "threshold": threshold,
        "trimmed": int(row[_TRIMMED]),
    }
