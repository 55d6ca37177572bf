"""Uncompressed parameters, concatenated in a vector; memory, and errors of gradients."""

import contextlib
import time
from collections.abc import Iterable, Iterator

import torch

from gradwire.errors import NonFiniteError
from gradwire.torch.engine.parameter import BucketSlice
from gradwire.torch.engine.step import BucketTask, BufferPool
from gradwire.torch.errors import GradientError


def take_buffers(task: BucketTask, pool: BufferPool, *sizes: int) -> list[torch.Tensor]:
    """Allocate memory for collectives, as uint8.

    An error becomes that of the task, which the exchange tells the other ranks. Its collectives are
    still started, with new memory of zeros, after the pool's unused memory was freed. Only if that
    also fails does this rank start none, and raise.
    """
    try:
        return [pool.take(size, task.step.number, task.bucket) for size in sizes]
    except BaseException as error:  # of any kind: the other ranks wait for the collectives
        pool.clear()
        device = task.bucket.frames_on
        task.error = task.error or error
        return [torch.zeros(size, dtype=torch.uint8, device=device) for size in sizes]


def pack_dense(task: BucketTask, packed: torch.Tensor) -> None:
    """Copy the dense parameters into one vector; raise a GradientError if one is not finite."""
    if not task.bucket.pack(task.contents.runs, packed):
        error = not_finite_error(task, task.contents.dense, -1)
        if error is not None:
            raise error


def unpack_dense(task: BucketTask, averages: torch.Tensor, start: float) -> None:
    """Copy averages back to the dense parameters; count the time since ``start``."""
    task.bucket.unpack(task.contents.runs, averages)
    count_dense(task, time.perf_counter() - start)


def count_dense(task: BucketTask, seconds: float) -> None:
    """Add the exchange of the dense parameters to the metrics."""
    contents = task.contents
    nbytes = contents.dense_numels * task.bucket.itemsize
    contents.counters.dense(contents.dense_rows, nbytes, round(1e9 * seconds))


def sum_dtype(dtype: torch.dtype) -> torch.dtype:
    """Return the dtype in which values of a dtype are summed: at least float32."""
    return torch.promote_types(dtype, torch.float32)


def divide(total: torch.Tensor, count: int) -> torch.Tensor:
    """Divide sums in place, with the same rounding on every device.

    For a divisor on the host, a GPU would multiply by its inverse.
    """
    return total.div_(total.new_full((), count))


@contextlib.contextmanager
def naming(piece: BucketSlice) -> Iterator[None]:
    """Raise the error of an encode with the name of the parameter."""
    try:
        yield
    except NonFiniteError as error:
        raise GradientError(error.count, error.first, piece.parameter.name, -1) from error


def overflow_error(task: BucketTask) -> GradientError:
    """Return the error of an average that is not finite."""
    error = not_finite_error(task, (*task.contents.pieces, *task.contents.dense), 0)
    assert error is not None, "called for a finite buffer"
    return error


def not_finite_error(
    task: BucketTask, pieces: Iterable[BucketSlice], rank: int
) -> GradientError | None:
    """Return the error of the first piece with non-finite values."""
    for piece in pieces:
        count, first = task.bucket.not_finite(piece.start, piece.stop, piece.parameter.width)
        if count:
            return GradientError(count, first, piece.parameter.name, rank)
    return None
