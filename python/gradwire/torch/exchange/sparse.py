"""The exchange of a sparse gradient, as of `nn.Embedding`: a plain all-reduce, as in DDP."""

import time

import numpy as np
import torch

from gradwire.torch.engine.step import BucketTask, InFlightBucket
from gradwire.torch.errors import ExchangeError, GradientError
from gradwire.torch.transport import Channel

__all__ = ["combine", "send"]

# Digest of the layout, number of the bucket, number of non-finite entries, position of the first.
_HEAD = 4


def send(channel: Channel, job: BucketTask, sequence: int) -> InFlightBucket:
    """Start the exchange of a bucket: an all-gather of heads, and the sum.

    A sparse bucket holds a single parameter.
    """
    world_size = channel.size
    part = job.bucket.sparse().div(world_size).coalesce()
    head = torch.tensor([job.layout.digest, sequence, *_not_finite(part)])
    heads = torch.empty(world_size * _HEAD, dtype=torch.int64)
    gathered = channel.all_gather(heads, head)
    indices, values = part.indices(), part.values()
    nbytes = sum(each.numel() * each.element_size() for each in (head, indices, values))
    summed = channel.all_reduce(part)
    return InFlightBucket(
        job,
        sequence,
        works=(gathered, summed),
        collectives=2,
        contents=(heads, part, head),
        room=nbytes,
        wire=nbytes * (world_size - 1),
    )


def combine(flight: InFlightBucket, *, check_result: bool) -> None:
    """Set the job's result to the average.

    Raises
    ------
    GradientError
        A gradient was not finite on some rank, or with ``check_result``, the result overflowed.
    ExchangeError
        The ranks are out of step.
    """
    start = time.perf_counter()
    contents = flight.contents
    assert isinstance(contents, tuple)
    heads, total, _ = contents
    layout = flight.job.layout
    (piece,) = layout.dense
    name = piece.parameter.name
    every = heads.view(-1, _HEAD).tolist()
    for rank, (digest, sequence, _, _) in enumerate(every):
        if (digest, sequence) != (layout.digest, flight.sequence):
            raise ExchangeError(
                f"rank {rank} is at bucket {sequence}, this rank at bucket {flight.sequence}: "
                "the ranks did not run the same backward passes",
                rank,
            )
    for rank, (_, _, count, first) in enumerate(every):
        if count:
            raise GradientError(count, first, name, rank)
    if check_result:
        count, first = _not_finite(total.coalesce())
        if count:
            raise GradientError(count, first, name, 0)
    flight.job.bucket.store(total)
    nanoseconds = round(1e9 * (time.perf_counter() - start))
    layout.counters.dense(layout.dense_rows, np.array([flight.room]), nanoseconds)


def _not_finite(tensor: torch.Tensor) -> tuple[int, int]:
    """Return the number of non-finite entries, and the flat position of the first."""
    bad = ~torch.isfinite(tensor.values())
    count = int(bad.sum())
    if not count:
        return 0, 0
    entry, *rest = bad.nonzero()[0].tolist()
    position = 0
    places = tensor.indices()[:, entry].tolist() + rest
    for place, length in zip(places, tensor.shape, strict=True):
        position = position * length + place
    return count, position
