"""What several exchanges are made of: dense parameters, and failures that travel to all ranks."""

import time
from collections.abc import Sequence

import torch
import torch.distributed as dist

from gradwire.errors import NonFiniteError
from gradwire.torch.ddp.errors import ExchangeError, GradientError
from gradwire.torch.ddp.jobs import Job
from gradwire.torch.ddp.layout import Layout, Piece

__all__ = [
    "accumulator",
    "all_finite",
    "any_nonzero",
    "named",
    "names",
    "overflow",
    "pack_dense",
    "raise_bad",
    "reason_of",
    "unpack_dense",
    "wait",
]


def pack_dense(job: Job, packed: torch.Tensor) -> None:
    """Copy the parameters that travel dense, one after another.

    Raises
    ------
    GradientError
        One of them is not finite.
    """
    at = 0
    for start, stop in job.layout.runs:
        packed[at : at + stop - start] = job.buffer[start:stop]
        at += stop - start
    if torch.isfinite(packed).all():
        return
    for piece in job.layout.dense:
        bad = ~torch.isfinite(job.buffer[piece.start : piece.stop])
        if bad.any():
            first = int(bad.nonzero()[0])
            raise GradientError(int(bad.sum()), first, piece.parameter.name, -1)


def unpack_dense(job: Job, averages: torch.Tensor, start: float) -> None:
    """Put averages back where `pack_dense` took the values; the work began at start."""
    at = 0
    for begin, end in job.layout.runs:
        job.buffer[begin:end] = averages[at : at + end - begin]
        at += end - begin
    share = (time.perf_counter() - start) / len(job.layout.dense)
    for piece in job.layout.dense:
        piece.parameter.tally.dense(piece.parameter.numel * job.buffer.element_size(), share)


def named(error: NonFiniteError, piece: Piece) -> GradientError:
    """Return the error of an encode with the parameter's name."""
    return GradientError(error.count, error.first, piece.parameter.name, -1)


def reason_of(error: GradientError, layout: Layout) -> list[int]:
    """Return what `raise_bad` makes the error of again, on another rank."""
    return [names(layout).index(str(error.name)), error.count, error.first]


def raise_bad(layout: Layout, reason: Sequence[int], rank: int) -> None:
    """Raise the error of a gradient that is not finite on some rank."""
    index, count, first = reason
    raise GradientError(count, first, names(layout)[index], rank)


def names(layout: Layout) -> list[str]:
    """Return the names of all parameters of a bucket, in an order that all ranks share."""
    return [piece.parameter.name for piece in (*layout.pieces, *layout.dense)]


def wait(work: "dist.Work", sequence: int) -> None:
    """Wait for a collective of a bucket."""
    try:
        work.wait()
    except RuntimeError as error:
        raise ExchangeError(
            f"bucket {sequence} was not exchanged: another rank has stopped, failed, or did not "
            f"come to the same backward in time ({str(error).strip()})"
        ) from error


def any_nonzero(gradient: torch.Tensor, block: int = 1 << 16) -> bool:
    """Tell whether an entry is not zero; nearly always the first block says so."""
    starts = range(0, gradient.numel(), block)
    return any(bool(gradient[start : start + block].any()) for start in starts)


def accumulator(dtype: torch.dtype) -> torch.dtype:
    """Return the dtype that dense values of a dtype are added up in."""
    return torch.promote_types(dtype, torch.float32)


def all_finite(tensor: torch.Tensor) -> bool:
    """Tell whether every entry is finite."""
    # One read and no temporary. A sum of finite values may overflow: then look closely.
    total = tensor.sum(dtype=torch.promote_types(tensor.dtype, torch.float32))
    return bool(torch.isfinite(total)) or bool(torch.isfinite(tensor).all())


def overflow(job: Job) -> GradientError:
    """Return the error of an average that is not finite."""
    for piece in (*job.layout.pieces, *job.layout.dense):
        bad = ~torch.isfinite(job.buffer[piece.start : piece.stop])
        if bad.any():
            first = int(bad.nonzero()[0])
            return GradientError(int(bad.sum()), first, piece.parameter.name, 0)
    raise AssertionError("called for a finite buffer")
