"""Second moments that a codec's state takes over from elsewhere, and what they are to be there."""

from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray

from gradwire.torch.engine.parameter import ParameterSlot
from gradwire.torch.engine.step import BucketTask
from gradwire.torch.transport import Channel

__all__ = ["measure", "with_second_moment"]

_SUMS = 256
"""Sums of entries with random signs, whose square is on average that of all entries."""


class _State(Protocol):
    def state_dict(self) -> dict[str, Any]: ...


def with_second_moment(state: _State, values: NDArray[Any], steps: int) -> dict[str, Any]:
    """Return a state's dict with this second moment, an average of so many gradients.

    Their number goes along: the correction of Adam's bias divides by ``1 - beta2**steps``. If it
    began at 0, a mature moment would be taken for a thousand times as large, and steps would be far
    too small.
    """
    held = state.state_dict()
    step = max(steps, int(held["step"]))
    scalars = {**held["scalars"], "second_moment_steps": float(steps)}
    return {**held, "second_moment": values, "step": step, "scalars": scalars}


def measure(job: BucketTask, channel: Channel) -> None:
    """Measure the spread of a bucket's gradients over the ranks. A collective, of a few sums each.

    Dense training squares averages of all ranks, a codec each rank's own gradients: second moments
    go from the one to the other by the ratio of both. The square of the average is that of sums of
    the entries with random signs, the same on all ranks, of which only the sums are averaged
    (Alon, Matias, Szegedy, "The Space Complexity of Approximating the Frequency Moments", STOC
    1996). Its standard error is a tenth.
    """
    pieces = [each for each in job.layout.pieces if each.parameter.codec.memory.updates]
    if not pieces or channel.size == 1:
        return
    found = job.bucket.buffer.new_full((len(pieces), _SUMS + 1), torch.nan, dtype=torch.float32)
    if job.error is None:
        for row, piece in zip(found, pieces, strict=True):
            values = job.bucket.buffer[piece.start : piece.stop].float()
            row[-1] = values.square().sum()
            row[:-1] = _signed(values)
    found = found.to(job.bucket.frames_on)
    channel.all_reduce(found.view(-1)).wait()
    for piece, (*sums, own) in zip(pieces, found.cpu().double().numpy(), strict=True):
        common = float(np.square(sums).sum())
        if 0.0 < common < np.inf and 0.0 < own < np.inf:
            job.step.spreads[piece.parameter.name] = piece.parameter.spread
            _note(piece.parameter, min(max(channel.size * own / common, 1.0), channel.size))


def _signed(values: torch.Tensor) -> torch.Tensor:
    """Return sums of entries with signs that depend on their number alone."""
    numel = values.numel()
    rows = -(-numel // _SUMS)
    bits = np.frombuffer(np.random.PCG64(numel).random_raw(-(-rows * _SUMS // 64)), np.uint8)
    signs = torch.from_numpy(np.unpackbits(bits)[: rows * _SUMS]).to(values.device)
    padded = torch.nn.functional.pad(values, (0, rows * _SUMS - numel))
    return padded.mul_(signs.float().mul_(2.0).sub_(1.0)).view(rows, _SUMS).sum(0)


def _note(parameter: ParameterSlot, spread: float) -> None:
    """Record a spread, half of it as measured now, and correct what was taken over by the last."""
    known = parameter.spread
    # To digits that no order of addition changes.
    spread = round(float(spread if known is None else 0.5 * (known + spread)), 3)
    parameter.spread = spread
    if parameter.taken is not None:
        held = parameter.state.state_dict()
        factor = np.float32(spread / parameter.taken)
        parameter.state.load_state_dict({**held, "second_moment": held["second_moment"] * factor})
        parameter.taken = None
