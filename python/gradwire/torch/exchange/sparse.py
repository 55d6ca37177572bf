"""The exchange of a sparse gradient, as of `nn.Embedding`: a plain all-reduce, as in DDP."""

import time

import numpy as np
import torch
from typing_extensions import override

from gradwire.torch.errors import GradientError
from gradwire.torch.exchange import wire
from gradwire.torch.exchange.base import Transfer

_NBYTES = 96  # of a message, with room for the numbers of a GradientError


class SparseBucket(Transfer):
    """One bucket that is a sparse tensor, of a single parameter: messages, and the sum."""

    messages: torch.Tensor  # of all ranks
    total: torch.Tensor

    @override
    def send(self) -> None:
        channel, (piece,) = self.exchange.channels[0], self.contents.dense
        self.total = self.bucket.sparse().div(channel.size).coalesce()
        count, first = _not_finite(self.total)
        error = GradientError(count, first, piece.parameter.name, channel.rank) if count else None
        message = np.zeros(_NBYTES, np.uint8)
        wire.write_verdict(message, self.contents.digest, self.sequence, error)
        mine = torch.from_numpy(message)
        self.messages = mine.new_empty(channel.size * _NBYTES)
        self.hold(mine, self.messages)
        self.works.append(channel.all_gather(self.messages, mine))
        nbytes = self.total.indices().nbytes + self.total.values().nbytes
        for size in (_NBYTES, nbytes):
            self.count(size, size * (channel.size - 1))
        self.dense_nbytes = self.room * channel.size // 2  # it goes from all to all
        self.works.append(channel.all_reduce(self.total))

    @override
    def read_headers(self) -> None:
        rows = self.messages.view(-1, _NBYTES).numpy()
        for verdict in wire.read_verdicts(rows, self.contents.digest, self.sequence):
            error = verdict.error
            if isinstance(error, GradientError):
                name = self.contents.names[0]  # of which the message has only the beginning
                raise GradientError(error.count, error.first, name, error.rank)

    @override
    def combine(self) -> None:
        start, contents = time.perf_counter(), self.contents
        if self.exchange.check_result:
            count, first = _not_finite(self.total.coalesce())
            if count:
                raise GradientError(count, first, contents.names[0], 0)
        self.result, self.finite = self.total, True
        nanoseconds = round(1e9 * (time.perf_counter() - start))
        contents.counters.dense(contents.dense_rows, np.array([self.room]), nanoseconds)


def _not_finite(tensor: torch.Tensor) -> tuple[int, int]:
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
