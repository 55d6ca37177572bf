"""Uncompressed parameters: dense ones, concatenated in a vector, and sparse gradients."""

import contextlib
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace

import numpy as np
import torch

from gradwire.errors import NonFiniteError
from gradwire.torch.engine.parameter import BucketSlice
from gradwire.torch.engine.step import BucketTask, BufferPool, InFlightBucket
from gradwire.torch.errors import GradientError
from gradwire.torch.exchange.wire import read_verdicts, write_verdict
from gradwire.torch.transport import Channel

_SPARSE_NBYTES = 96  # with room for the numbers of a GradientError


def take_buffers(
    task: BucketTask, requests: Sequence[tuple[BufferPool, int]]
) -> tuple[list[torch.Tensor], BucketTask]:
    """Allocate memory for collectives, as uint8: a number of bytes from each pool.

    An error becomes that of the returned task, which the exchange tells the other ranks. Its
    collectives are still started, with new memory of zeros, after the pools' unused memory was
    freed. Only if that also fails does this rank start none, and raise.
    """
    try:
        return [pool.take(size, task.step.number, task.bucket) for pool, size in requests], task
    except BaseException as error:  # of any kind: the other ranks wait for the collectives
        for pool, _ in requests:
            pool.clear()
        device = task.bucket.frames_on
        buffers = [torch.zeros(size, dtype=torch.uint8, device=device) for _, size in requests]
        return buffers, replace(task, error=task.error or error)


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


# Sparse gradients, as of `nn.Embedding`: a plain all-reduce, as in DDP --------------------------


def send_sparse(channel: Channel, task: BucketTask, sequence: int) -> InFlightBucket:
    """Start the exchange of a sparse bucket, which holds one parameter: messages, and the sum."""
    world_size = channel.size
    part = task.bucket.sparse().div(world_size).coalesce()
    count, first = _sparse_not_finite(part)
    (piece,) = task.contents.dense
    error = GradientError(count, first, piece.parameter.name, channel.rank) if count else None
    message = np.zeros(_SPARSE_NBYTES, np.uint8)
    write_verdict(message, task.contents.digest, sequence, error)
    mine = torch.from_numpy(message)
    messages = mine.new_empty(world_size * _SPARSE_NBYTES)
    gathered = channel.all_gather(messages, mine)
    nbytes = sum(tensor.nbytes for tensor in (mine, part.indices(), part.values()))
    summed = channel.all_reduce(part)
    return InFlightBucket(
        task,
        sequence,
        works=(gathered, summed),
        collectives=2,
        payload=(messages, part, mine),
        room=nbytes,
        wire=nbytes * (world_size - 1),
    )


def receive_sparse(flight: InFlightBucket, *, check_result: bool) -> None:
    """Store the average of a sparse bucket.

    Raises a GradientError if a gradient was not finite on some rank or, with ``check_result``, the
    result overflowed; an ExchangeError if the ranks are out of step.
    """
    start = time.perf_counter()
    assert isinstance(flight.payload, tuple)
    messages, total, _ = flight.payload
    contents = flight.task.contents
    (piece,) = contents.dense
    name = piece.parameter.name
    rows = messages.view(-1, _SPARSE_NBYTES).numpy()
    for verdict in read_verdicts(rows, contents.digest, flight.sequence):
        if isinstance(verdict.error, GradientError):
            raise GradientError(verdict.error.count, verdict.error.first, name, verdict.error.rank)
    if check_result:
        count, first = _sparse_not_finite(total.coalesce())
        if count:
            raise GradientError(count, first, name, 0)
    flight.task.bucket.store(total)
    nanoseconds = round(1e9 * (time.perf_counter() - start))
    contents.counters.dense(contents.dense_rows, np.array([flight.room]), nanoseconds)


def _sparse_not_finite(tensor: torch.Tensor) -> tuple[int, int]:
    """Return the number of non-finite entries, and the flat position of the first."""
    bad = ~torch.isfinite(tensor.values())
    count = int(bad.sum())
    if not count:
        return 0, 0
    entry, *rest = bad.nonzero()[0].tolist()
    position = 0
    indices = tensor.indices()[:, entry].tolist() + rest
    for index, length in zip(indices, tensor.shape, strict=True):
        position = position * length + index
    return count, position
