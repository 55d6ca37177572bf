"""Compressed reduce-scatter and all-gather: parts of frames to owners, sums back to all ranks.

`gradwire.exchange.ReduceScatter` and `gradwire.exchange.QuantizedAllReduce` differ only in how
owners encode the sums, which `merge_bucket` derives from the codec. A bucket takes four
collectives, the first started in the sending thread, the others one after another in the receiving
thread and in a channel of their own:

1. an all-to-all of messages of fixed length: each rank's outcome, which gradients were zero, and
   how many bytes follow;
2. an all-to-all of the parts, with exactly these lengths;
3. an all-gather of each owner's outcome, and the bytes of its sums;
4. an all-to-all with exactly these lengths, in which every owner sends its sums to all.

Every rank learns of a failure before the collective for which the failing rank would have no data;
then the ranks share the errors instead, and raise the same one.
"""

import contextlib
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import cast

import numpy as np
import torch
from numpy.typing import NDArray
from typing_extensions import override

from gradwire.errors import NonFiniteError
from gradwire.torch.engine.bucket_contents import BucketContents
from gradwire.torch.engine.parameter import ParameterSlot
from gradwire.torch.errors import ExchangeError, GradientError
from gradwire.torch.exchange import wire
from gradwire.torch.exchange.base import Transfer
from gradwire.torch.exchange.dense import divide, pack_dense, sum_dtype, unpack_dense
from gradwire.torch.transport import Work

# More than any frame has, whatever its codec: besides its entries, and for each of them.
_FRAME_NBYTES, _ENTRY_NBYTES = 4096, 32
_UNEQUAL = 4  # runs begin where groups do if a run has at least so many of them


@dataclass(frozen=True, slots=True)
class _Run:
    """A part of a parameter that one rank owns."""

    index: int  # of the parameter among the compressed ones of the bucket
    start: int  # its first entry in the parameter
    stop: int


class _Ownership:
    """The owner of each range of entries in a bucket.

    The compressed entries of a model, one parameter after another from its end, are assigned to the
    ranks in runs of such a length that a bucket has about one for each rank. So a small parameter
    mostly has one owner, a bucket involves all ranks, and the owner of an entry does not depend on
    how DDP groups the parameters, which differs at the start of a resumed run. Of a parameter as
    large as a bucket, every rank owns one run. Dense entries are divided evenly in every bucket:
    their sums do not depend on the owner. If adjacent entries share scales, such as a column of
    `gradwire.quantize.TwoMeans`, runs begin at the start of such a group, unless that would make
    them too unequal. So owners quantize whole groups again, and no frame is cut within one.
    """

    __slots__ = ("bounds", "dense", "owners", "runs")

    def __init__(self, contents: BucketContents, size: int) -> None:
        cuts = [_runs_of(parameter, size) for parameter in contents.compressed]
        # Where the runs of each compressed parameter begin and end, in its entries.
        self.bounds = [bounds for bounds, _ in cuts]
        # The rank that owns each of them; no rank owns two runs of one parameter.
        self.owners = [owners for _, owners in cuts]
        # Those of each rank, in the order of the bucket.
        self.runs: list[list[_Run]] = [[] for _ in range(size)]
        for index, (bounds, owners) in enumerate(cuts):
            for owner, (start, stop) in zip(owners, pairwise(bounds), strict=True):
                self.runs[owner].append(_Run(index, start, stop))
        # Where each rank's dense entries begin and end.
        self.dense = _divide_evenly(contents.dense_numel, size)

    def limits(self, itemsize: int) -> list[int]:
        """Return for each rank a bound, in bytes, on messages with the entries that it owns."""
        return [
            itemsize * (stop - start)
            + sum(_FRAME_NBYTES + _ENTRY_NBYTES * (run.stop - run.start) for run in runs)
            for runs, (start, stop) in zip(self.runs, pairwise(self.dense), strict=True)
        ]


def _runs_of(parameter: ParameterSlot, size: int) -> tuple[list[int], list[int]]:
    """Return the bounds of a parameter's runs, and their owners."""
    numel, (before, together) = parameter.numel, parameter.run
    run = max(1, -(-together // size))
    first = before // run
    if numel == 0:
        return [0], []
    if numel > run * (size - 1):  # one run would not be enough, or two could have one owner
        bounds = _divide_evenly(numel, size)
    else:
        # With runs of 250, 600 entries after 100 others are cut at 150 and 400.
        inside = range(run * (first + 1), before + numel, run)
        bounds = [0, *(bound - before for bound in inside), numel]
    step: int = parameter.codec._codec.cut_step(numel)
    if _UNEQUAL * step <= run:
        bounds[1:-1] = [min((bound + step // 2) // step * step, numel) for bound in bounds[1:-1]]
    owners = [(first + index) % size for index in range(len(bounds) - 1)]
    there = [index for index in range(len(owners)) if bounds[index] < bounds[index + 1]]
    return [*(bounds[index] for index in there), numel], [owners[index] for index in there]


def _divide_evenly(numel: int, size: int) -> list[int]:
    return [numel * rank // size for rank in range(size + 1)]


def check_lengths(verdicts: Sequence[wire.Verdict], limits: Sequence[int]) -> list[int]:
    """Return the announced bytes; raise an ExchangeError if they exceed the possible size."""
    lengths = [verdict.nbytes for verdict in verdicts]
    for rank, (length, limit) in enumerate(zip(lengths, limits, strict=True)):
        if length > limit:
            raise ExchangeError(
                f"rank {rank} announces {length} bytes, more than the maximum of {limit}: its "
                "message is damaged",
                rank,
            )
    return lengths


@contextlib.contextmanager
def _aside(contents: BucketContents, runs: Sequence[_Run]) -> Iterator[None]:
    """Take the residuals of the runs that this rank owns out of an encode.

    They hold what waits of the sums of all ranks, which is N times as large as an entry of one
    rank: it would fill the frame, though the owner needs no frame of it. The merge adds it whole.
    """
    with contextlib.ExitStack() as stack:  # puts all of them back, whatever fails in between
        for run in runs:
            parameter = contents.compressed[run.index]
            state, codec = parameter.state, parameter.codec
            if codec.sparsify.selects and codec.memory.keeps:
                step, lifted = state.step, state._lift(run.start, run.stop)
                stack.callback(state._lower, run.start, lifted, step)
        yield


class OwnedBucket(Transfer):
    """One bucket whose parts of frames go to their owners, which send encoded sums to all ranks.

    Both channels are a `LocalChannel`; the second one supports tensors on the device of frames.
    """

    ownership: _Ownership
    # For all owners, one after another: dense entries, and parts of frames; None if there are none.
    parts: torch.Tensor | None = None
    mark: object = None  # of the work that has made them
    sizes: list[int]  # of the parts for each owner
    fronts: torch.Tensor  # messages of all ranks, each with its zero flags
    failure: BaseException | None = None  # why this rank has no parts
    unused: NDArray[np.bool_]  # parameters whose gradients are zero on every rank
    # Of all owners: means of dense entries, and frames of sums; and the bytes of each owner's.
    merged: torch.Tensor
    lengths: list[int]

    # The sending thread -----------------------------------------------------------------------

    @override
    def send(self) -> None:
        start, contents, exchange = time.perf_counter(), self.contents, self.exchange
        size = exchange.world_size
        self.ownership = _Ownership(contents, size)
        zero = np.zeros(len(contents.pieces), np.int64)
        self.sizes = [0] * size
        try:
            if self.task.error is not None:
                raise self.task.error
            parts = self._cut(zero)
            self.parts = torch.cat(parts)
            self.mark = self.bucket.used(self.parts)
            self.sizes = [part.numel() for part in parts]
        except BaseException as error:  # of any kind: the other ranks wait for the message
            self.failure = error
        front = wire.HEADER_NBYTES + -(-len(contents.pieces) // 8)
        checksum = exchange.checksums.last(contents)
        rows = np.zeros((size, front), np.uint8)
        rows[:, wire.HEADER_NBYTES :] = np.packbits(zero.astype(bool))
        for row, nbytes in zip(rows[:, : wire.HEADER_NBYTES], self.sizes, strict=True):
            wire.write_verdict(row, contents.digest, self.sequence, self.failure, nbytes, checksum)
        mine = torch.from_numpy(rows).view(-1)
        fronts = torch.empty_like(mine)
        exchange.times.add("encode", start)
        self.fronts, nbytes = fronts.view(size, -1), mine.numel()
        send = exchange.channels[0].all_to_all
        self.begin(send, fronts, mine, room=nbytes, sent=nbytes - front)

    def _cut(self, zero: NDArray[np.int64]) -> list[torch.Tensor]:
        """Return the message for each owner: its dense entries, and then its parts."""
        contents, ownership, exchange = self.contents, self.ownership, self.exchange
        codecs = [slot.codec for slot in contents.compressed]
        # Lengths are exact: no sizes are observed, and those that a checkpoint brings do not count.
        limits = [slot.codec.max_encoded_len(slot.numel) for slot in contents.compressed]
        frames = exchange.frames.take(sum(limits), self.task.step.number, self.bucket)
        try:
            with _aside(contents, ownership.runs[exchange.rank]):
                outcomes = self.encode(contents.pieces, limits, frames)
            zero[:] = outcomes.zero
            parts = self.bucket.split(
                *(codecs, frames, outcomes.nbytes.tolist(), outcomes.count.tolist()),
                *(ownership.bounds, ownership.owners, exchange.world_size),
            )
        finally:
            exchange.frames.give(frames)  # to this thread, which works in its own order
        contents.counters.encoded(contents.rows, outcomes, outcomes.nbytes)
        if not contents.runs:
            return parts
        device = self.bucket.frames_on
        dense = torch.empty(contents.dense_numel, dtype=contents.dtype, device=device)
        pack_dense(self.task, dense)
        values = torch.split(dense, [stop - start for start, stop in pairwise(ownership.dense)])
        return [
            torch.cat((value.view(torch.uint8), part))
            for value, part in zip(values, parts, strict=True)
        ]

    # The receiving thread ---------------------------------------------------------------------

    @override
    def read_headers(self) -> None:
        """Exchange the parts, merge the ranges that this rank owns, and exchange the sums."""
        contents, exchange, bucket = self.contents, self.exchange, self.bucket
        size, fronts = exchange.world_size, self.fronts.numpy()
        verdicts = self._verdicts(fronts, self.failure, "encode")
        zeros = np.unpackbits(fronts[:, wire.HEADER_NBYTES :], axis=1, count=len(contents.pieces))
        self.unused = zeros.min(axis=0).astype(bool)
        limits = self.ownership.limits(bucket.itemsize)
        lengths = check_lengths(verdicts, [limits[exchange.rank]] * size)
        assert self.parts is not None
        bucket.follow(self.mark)
        received = self._swap(self.parts, self.sizes, lengths)
        self.parts = None
        error, nbytes, merged = None, 0, None
        try:
            unused = np.flatnonzero(self.unused)
            self.task.step.undo(map(contents.compressed.__getitem__, unused))
            merged = self._merge(received, lengths)
            nbytes, merged = merged.numel(), merged.repeat(size)
        except BaseException as raised:  # of any kind: the other ranks wait for the message
            error = raised
        header = np.zeros(wire.HEADER_NBYTES, np.uint8)
        wire.write_verdict(header, contents.digest, self.sequence, error, nbytes)
        mine = torch.from_numpy(header)
        headers = mine.new_empty(size * wire.HEADER_NBYTES)
        gather, sent = exchange.channels[1].all_gather, headers.numel() - mine.numel()
        self.begin(gather, headers, mine, room=mine.numel(), sent=sent)
        wire.wait(self.works.pop(), self.sequence)
        verdicts = self._verdicts(headers.view(size, -1).numpy(), error, "merge what it owns")
        self.lengths = check_lengths(verdicts, limits)
        assert merged is not None
        self.merged = self._swap(merged, [nbytes] * size, self.lengths)

    def _verdicts(
        self, messages: wire.Bytes, error: BaseException | None, act: str
    ) -> list[wire.Verdict]:
        """Return the outcome of an act on all ranks; raise the same error on all if one failed."""
        contents, exchange = self.contents, self.exchange
        verdicts = wire.read_verdicts(messages, contents.digest, self.sequence, raises=False)
        if any(verdict.failed for verdict in verdicts):
            wire.share_failure(exchange.channels[1], contents, self.sequence, error, act)
        exchange.checksums.compare(contents, verdicts)
        return verdicts

    def _swap(self, mine: torch.Tensor, sizes: list[int], lengths: list[int]) -> torch.Tensor:
        """Send each rank its bytes of a message; return those of all ranks for this one."""
        parts = mine.new_empty(sum(lengths))
        channel, sent = self.exchange.channels[1], mine.numel() - sizes[self.exchange.rank]

        def swap(parts: torch.Tensor, mine: torch.Tensor) -> Work:
            work: Work = channel.all_to_all(parts, mine, lengths, sizes)
            return work

        self.begin(swap, parts, mine, room=mine.numel(), sent=sent)
        wire.wait(self.works.pop(), self.sequence)
        return parts

    def _merge(self, received: torch.Tensor, lengths: list[int]) -> torch.Tensor:
        """Return the means of this rank's dense entries, and frames of the sums of its runs."""
        contents, ownership = self.contents, self.ownership
        rank, size = self.exchange.rank, self.exchange.world_size
        numel = ownership.dense[rank + 1] - ownership.dense[rank]
        nbytes = numel * self.bucket.itemsize
        starts, bounds = _bounds(lengths, [nbytes] * size)
        runs = ownership.runs[rank]
        frames, error, at = self.bucket.merge(
            received,
            bounds,
            [contents.compressed[run.index].codec for run in runs],
            [contents.compressed[run.index].state for run in runs],
            [end for run in runs for end in (run.start, run.stop)],
            [bool(self.unused[run.index]) for run in runs],
        )
        if isinstance(error, NonFiniteError):
            run = runs[at]
            name = contents.compressed[run.index].name
            raise GradientError(error.count, run.start + error.first, name, -1) from error
        if error is not None:
            raise error
        if not numel:
            return frames
        total = received.new_zeros(numel, dtype=sum_dtype(contents.dtype))
        for start in starts:
            # A copy: what follows dense entries of another rank may have put these anywhere.
            total += received[start : start + nbytes].clone().view(contents.dtype)
        mean = divide(total, size).to(contents.dtype)
        return torch.cat((mean.view(torch.uint8), frames))

    @override
    def combine(self) -> None:
        """Decode the messages of all owners: averages of their runs, and dense means."""
        contents, bucket, ownership = self.contents, self.bucket, self.ownership
        merged, runs, pieces = self.merged, ownership.runs, contents.pieces
        dense = [bucket.itemsize * (stop - start) for start, stop in pairwise(ownership.dense)]
        starts, bounds = _bounds(self.lengths, dense)
        unused = [[bool(self.unused[run.index]) for run in owned] for owned in runs]
        counts = [owned.count(False) for owned in unused]
        sizes = bucket.frame_sizes(merged, bounds, counts)
        for rank, (parts, skipped) in enumerate(zip(sizes, unused, strict=True)):
            if parts is None:
                raise ExchangeError(f"the frames of rank {rank} do not fill its message", rank)
            for index in np.flatnonzero(skipped).tolist():
                parts.insert(index, 0)
        ends = [
            [pieces[run.index].start + end for run in owned for end in (run.start, run.stop)]
            for owned in runs
        ]
        spent = bucket.average_sums(
            *(merged, bounds[::2], cast("list[list[int]]", sizes), ends, unused),
            *(self.task.scale, self.exchange.world_size),
        )
        for owned, nanoseconds in zip(runs, spent, strict=True):
            if owned:
                contents.counters.decoded(contents.rows[[run.index for run in owned]], nanoseconds)
        if contents.runs:
            start = time.perf_counter()
            means = [merged[at : at + n] for at, n in zip(starts, dense, strict=True)]
            unpack_dense(self.task, torch.cat(means).view(contents.dtype), start)
        self.exchange.checksums.note(self)


def _bounds(lengths: list[int], dense: list[int]) -> tuple[list[int], list[int]]:
    """Return the starts of messages, and the bounds of the frames after the dense bytes in each."""
    stops = list(accumulate(lengths))
    starts = [0, *stops][: len(stops)]
    bounds = [(at + n, stop) for at, n, stop in zip(starts, dense, stops, strict=True)]
    return starts, [bound for pair in bounds for bound in pair]
