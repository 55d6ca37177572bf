"""Helpers of several exchanges: dense parameters, and errors that all ranks must raise."""

import time
from collections.abc import Sequence
from dataclasses import replace

import torch

from gradwire.errors import NonFiniteError
from gradwire.torch.engine.layout import Layout
from gradwire.torch.engine.parameter import BucketSlice
from gradwire.torch.engine.step import BucketTask, BufferPool
from gradwire.torch.errors import GradientError, kind_of
from gradwire.torch.transport import Work

__all__ = [
    "accumulator",
    "mean_of",
    "named",
    "overflow",
    "pack_dense",
    "raise_bad",
    "reason_of",
    "take",
    "unpack_dense",
    "wait",
]


def take(
    job: BucketTask, requests: Sequence[tuple[BufferPool, int]]
) -> tuple[list[torch.Tensor], BucketTask]:
    """Take memory that collectives need, so many bytes from each pool: uint8.

    What goes wrong becomes the error of the job that is returned, which the exchange tells the
    other ranks. Its collectives are made all the same: with new memory of zeros, after what the
    pools do not use was freed. Only if that fails, too, this rank makes none, and raises.
    """
    try:
        return [pool.take(size, job.step.number, job.bucket) for pool, size in requests], job
    except BaseException as error:  # of any kind: the other ranks wait for the collectives
        for pool, _ in requests:
            pool.clear()
        device = job.bucket.frames_on
        found = [torch.zeros(size, dtype=torch.uint8, device=device) for _, size in requests]
        return found, replace(job, error=job.error or error)


def pack_dense(job: BucketTask, packed: torch.Tensor) -> None:
    """Copy the dense parameters into one vector.

    Raises
    ------
    GradientError
        One of them is not finite.
    """
    if job.bucket.pack(job.layout.runs, packed):
        return
    for piece in job.layout.dense:
        count, first = _not_finite(job, piece)
        if count:
            raise GradientError(count, first, piece.parameter.name, -1)


def unpack_dense(job: BucketTask, averages: torch.Tensor, start: float) -> None:
    """Copy averages to where `pack_dense` read the values; the time counts from start."""
    layout = job.layout
    job.bucket.unpack(layout.runs, averages)
    nbytes = layout.dense_numels * job.bucket.itemsize
    layout.counters.dense(layout.dense_rows, nbytes, round(1e9 * (time.perf_counter() - start)))


def named(error: NonFiniteError, piece: BucketSlice) -> GradientError:
    """Return the error of an encode as one that names the parameter."""
    return GradientError(error.count, error.first, piece.parameter.name, -1)


def reason_of(error: GradientError, layout: Layout) -> list[int]:
    """Return an error as numbers, from which `raise_bad` can raise it on another rank."""
    return [layout.names.index(str(error.name)), error.count, error.first]


def raise_bad(layout: Layout, reason: Sequence[int], rank: int) -> None:
    """Raise the error of a non-finite gradient on some rank, from what `reason_of` returned."""
    index, count, first = reason
    raise GradientError(count, first, layout.names[index], rank)


def wait(work: Work, sequence: int) -> None:
    """Wait for a collective of a bucket."""
    try:
        work.wait()
    except RuntimeError as error:
        raise kind_of(error)(
            f"bucket {sequence} was not exchanged: another rank has stopped, failed, or did not "
            f"run the same backward pass in time ({str(error).strip()})",
            getattr(error, "rank", None),
        ) from error


def accumulator(dtype: torch.dtype) -> torch.dtype:
    """Return the dtype in which dense values are summed."""
    return torch.promote_types(dtype, torch.float32)


def mean_of(total: torch.Tensor, count: int) -> torch.Tensor:
    """Divide sums in place, rounded once on every device.

    By a number of the host, a GPU would multiply with its inverse.
    """
    return total.div_(total.new_full((), count))


def overflow(job: BucketTask) -> GradientError:
    """Return the error of an average that is not finite."""
    for piece in (*job.layout.pieces, *job.layout.dense):
        count, first = _not_finite(job, piece)
        if count:
            return GradientError(count, first, piece.parameter.name, 0)
    raise AssertionError("called for a finite buffer")


def _not_finite(job: BucketTask, piece: BucketSlice) -> tuple[int, int]:
    """Return the number of a parameter's non-finite entries, and the position of the first."""
    return job.bucket.not_finite(piece.start, piece.stop, piece.parameter.width)
