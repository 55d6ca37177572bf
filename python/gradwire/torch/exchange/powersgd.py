"""The exchange of PowerSGD: low-rank factors are summed, first P and then Q.

Vogels et al., "PowerSGD", NeurIPS 2019, algorithms 1 and 2. The receiving thread sums Q when P has
arrived, over a channel of its own: buckets arrive in the same order on all ranks.

Each rank's own products, M Q and M^T P, may differ in the last bits between processors; they are
only summed, and an all-reduce gives all ranks the same bits. Values computed from the sums must not
differ, so only elementwise operations are used. If the orthonormal P still differs between ranks,
flags that are summed along with Q reveal it.

Everything runs on the device of the gradients except the orthonormalization of P: a few numbers per
row, for which a GPU is not faster than the host.
"""

import math
import time
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import cast

import numpy as np
import torch
from numpy.typing import NDArray

from gradwire._orthonormal import orthonormalize
from gradwire.torch.engine.low_rank_state import FLOAT32, LowRankState
from gradwire.torch.engine.metrics import Outcomes
from gradwire.torch.engine.parameter import BucketSlice
from gradwire.torch.engine.step import BucketTask, InFlightBucket
from gradwire.torch.errors import ExchangeError, GradientError
from gradwire.torch.exchange import wire
from gradwire.torch.exchange.base import ExchangeBase
from gradwire.torch.exchange.dense import (
    divide,
    not_finite_error,
    pack_dense,
    sum_dtype,
    unpack_dense,
)
from gradwire.torch.transport import Channel

# Entries that are computed at once: what an outer product reads and writes fits into a cache.
_BLOCK = 1 << 17
_BLOCK_OF_GPU = 1 << 22


@dataclass(slots=True, eq=False)
class _Factors:
    """The vector of one bucket that this rank sums."""

    vector: torch.Tensor  # flags, dense parameters, and P of each piece
    dense: torch.Tensor  # a part of the vector
    ps: torch.Tensor  # another one
    matrices: list[torch.Tensor] = field(default_factory=list)  # gradients plus residuals
    error: BaseException | None = None  # why this rank sums nothing but the flags


class PowerSGDExchange(ExchangeBase):
    """Sums low-rank factors; ``rank`` is the rank of the approximation."""

    def __init__(
        self,
        channel: Channel,
        device_backends: Mapping[str, str],
        *,
        check_result: bool,
        second: Channel,
        rank: int,
    ) -> None:
        super().__init__(channel, device_backends, check_result=check_result, second=second)
        self._columns = rank

    # The sending thread -----------------------------------------------------------------------

    def send(self, task: BucketTask, sequence: int) -> InFlightBucket:
        """Compute P of each piece, and start their sum."""
        start = time.perf_counter()
        layout, dtype = task.layout, sum_dtype(task.layout.dtype)
        dense_at = wire.Flags.numel(layout)
        ps_at = dense_at + layout.dense_numel
        numel = ps_at + self._columns * sum(each.rows for each in _states(task))
        vector = torch.zeros(numel, dtype=dtype, device=task.bucket.frames_on)
        factors = _Factors(vector, vector[dense_at:ps_at], vector[ps_at:])
        word = wire.check_word(layout.digest, sequence, task.step.number)
        flags = wire.Flags(layout, word)
        try:
            self._fill(task, factors, flags)
        except BaseException as error:  # of any kind: the other ranks wait for the vector
            factors.error = error
            vector.zero_()
            flags.fail()
        task.bucket.write_header(vector.view(torch.uint8), flags.bytes_of(dtype))
        self.times.add("encode", start)
        second = self._second_numel(task)
        room = vector.nbytes + 4 * second
        self._keep(vector)
        return InFlightBucket(
            task,
            sequence,
            works=(self.channel.all_reduce(vector),),
            collectives=2 if second else 1,
            contents=factors,
            room=room,
            wire=2 * room * (self.world_size - 1) / self.world_size,
        )

    def _second_numel(self, task: BucketTask) -> int:
        """Return the length of the second sum, after P has arrived: 0 for a bucket without P."""
        numel = self._columns * sum(each.columns for each in _states(task))
        return wire.WORD_NUMEL + numel if numel else 0

    def _fill(self, task: BucketTask, factors: _Factors, flags: wire.Flags) -> None:
        task.check()
        layout = task.layout
        table, totals, ps = [], [], []
        for piece, state in zip(layout.pieces, _states(task), strict=True):
            begin = time.perf_counter_ns()
            gradient = task.bucket.gradient_there(piece.start, piece.stop, task.scale)
            totals.append(gradient.sum(dtype=sum_dtype(gradient.dtype)))
            matrix = state.matrix(gradient)
            factors.matrices.append(matrix)
            # Products with a few columns are several times as fast if each is contiguous.
            q = state.first()
            q = q if q.device == matrix.device else task.bucket.upload(q)
            ps.append((matrix @ q.T.contiguous().T).view(-1))
            nbytes = 4 * self._columns * (state.rows + state.columns)
            table.append([nbytes, 0, -1, 0, 0, time.perf_counter_ns() - begin])
        if table:
            _put(task, torch.cat(ps), factors.ps)
            for index, total in enumerate(task.bucket.read(torch.stack(totals)).tolist()):
                table[index][4] = zero = _is_zero(total, task, layout.pieces[index])
                if not zero:
                    flags.use(index)
            outcomes = Outcomes.of(np.array(table, np.int64))
            layout.counters.encoded(layout.rows, outcomes, outcomes.nbytes)
        if layout.runs:
            pack_dense(task, factors.dense)

    # The receiving thread ---------------------------------------------------------------------

    def _read_headers(self, flight: InFlightBucket) -> NDArray[np.uint8]:
        factors = flight.contents
        assert isinstance(factors, _Factors)
        nbytes = wire.Flags.numel(flight.task.layout) * factors.vector.element_size()
        return flight.task.bucket.read_headers(factors.vector.view(torch.uint8).view(1, -1), nbytes)

    def _combine(self, flight: InFlightBucket, headers: NDArray[np.uint8]) -> None:
        factors, task = flight.contents, flight.task
        assert isinstance(factors, _Factors)
        sums = wire.read_flags(headers[0], factors.vector.dtype)
        if sums.failed:
            wire.share_failure(self.second, task.layout, flight.sequence, factors.error)
        sums.check_step(flight.sequence)
        start = time.perf_counter()
        if factors.matrices:
            self._approximate(task, factors, sums.used, flight.sequence)
            share = round(1e9 * (time.perf_counter() - start) / len(factors.matrices))
            task.layout.counters.decoded(task.layout.rows, np.full(len(factors.matrices), share))
        start = time.perf_counter()
        if task.layout.runs:
            unpack_dense(task, divide(factors.dense, self.world_size), start)
        task.bucket.used(factors.vector)

    def _approximate(
        self, task: BucketTask, factors: _Factors, used: Sequence[bool], sequence: int
    ) -> None:
        """Sum Q, and write the approximate average to the bucket."""
        states, width = _states(task), self._columns
        ps = task.bucket.read(factors.ps.to(torch.float32))
        sums = _parts(ps, [each.rows for each in states], width)
        there = task.bucket.frames_on
        second = torch.empty(self._second_numel(task), dtype=torch.float32, device=there)
        flags, factor = second[: wire.WORD_NUMEL], second[wire.WORD_NUMEL :]
        bases: list[torch.Tensor] = []
        own: list[torch.Tensor] = []
        digest = 0
        for total, matrix in zip(sums, factors.matrices, strict=True):
            columns = total.numpy().T.copy()
            orthonormalize(columns)
            digest = zlib.crc32(columns.data, digest)
            transposed = task.bucket.upload(torch.from_numpy(columns))
            own.append((transposed @ matrix).T.reshape(-1))
            bases.append(transposed.T)
        _put(task, torch.cat(own), factor)
        word = torch.tensor(wire.word_flags(wire.check_word(digest)), **FLOAT32)
        task.bucket.write_header(second.view(torch.uint8), word.view(torch.uint8).numpy())
        self._keep(second)
        wire.wait(self.second.all_reduce(second), sequence)
        finite = factor.isfinite().all().to(torch.float32).view(1)
        *summed, sound = task.bucket.read(torch.cat([flags, finite])).tolist()
        if not wire.same_word([each > 0 for each in summed]):
            raise ExchangeError(
                f"the ranks have different bits of P at bucket {sequence}, although they computed "
                "it from one sum: they would apply different averages. The all-reduce did not give "
                "all ranks the same bits, or their processors or versions of NumPy round "
                "differently: use another backend, or the same software on all ranks"
            )
        if factor.device != bases[0].device:
            factor = task.bucket.upload(factor)
        qs = _parts(factor, [each.columns for each in states], width)
        for piece, q in () if sound else zip(task.layout.pieces, qs, strict=True):
            count = int((~torch.isfinite(q)).sum())
            if count:  # finite gradients whose products overflow: the same on all ranks
                raise GradientError(count, 0, piece.parameter.name, 0)
        for piece, state, p, q, matrix, sent in zip(
            task.layout.pieces, states, bases, qs, factors.matrices, used, strict=True
        ):
            if not sent:  # as far as the ranks can tell it is unused: nothing leaves the residual
                task.bucket.clear(piece.start, piece.stop)
                continue
            mean = divide(q.clone(), self.world_size)
            self._record(task, piece)  # measures the gradient, which is there until the next line
            self._write(task, piece.start, state, p, mean, matrix)
            state.take(mean)

    def _write(
        self,
        task: BucketTask,
        start: int,
        state: LowRankState,
        p: torch.Tensor,
        q: torch.Tensor,
        matrix: torch.Tensor,
    ) -> None:
        """Write ``p q^T`` to the bucket, and subtract it from the matrix.

        A few rows at a time, which stay in the caches.
        """
        at_once = max(1, (_BLOCK if matrix.is_cpu else _BLOCK_OF_GPU) // state.columns)
        transposed = q.T.contiguous()
        room = (2, min(at_once, state.rows), state.columns)
        product, term = torch.empty(room, dtype=torch.float32, device=matrix.device)
        for first in range(0, state.rows, at_once):
            rows = slice(first, min(first + at_once, state.rows))
            values = _product(p[rows], transposed, product, term)
            if state.keeps:
                matrix[rows].sub_(values)
            if task.scale != 1.0:
                values.mul_(task.scale)
            begin = start + first * state.columns
            task.bucket.values[begin : begin + values.numel()].copy_(values.view(-1))


def _states(task: BucketTask) -> list[LowRankState]:
    return [cast(LowRankState, piece.parameter.state) for piece in task.layout.pieces]


def _put(task: BucketTask, values: torch.Tensor, out: torch.Tensor) -> None:
    """Copy values from the device of the gradients to that of the collectives."""
    out.copy_(values if values.device == out.device else task.bucket.read(values))


def _parts(vector: torch.Tensor, lengths: Sequence[int], width: int) -> list[torch.Tensor]:
    """Return views of the matrices that are concatenated in a vector."""
    parts = torch.split(vector, [width * length for length in lengths])
    return [part.view(-1, width) for part in parts]


def _product(
    p: torch.Tensor, transposed: torch.Tensor, out: torch.Tensor, term: torch.Tensor
) -> torch.Tensor:
    """Return ``p q^T``, summed in a fixed order: the same bits on every processor.

    ``p`` has the shape (rows, rank), the transposed q (rank, columns). The result and its terms use
    given memory, of at least as many rows and columns.
    """
    total, term = out[: len(p)], term[: len(p)]
    torch.mul(p[:, :1], transposed[0], out=total)
    for at in range(1, p.shape[1]):
        total += torch.mul(p[:, at : at + 1], transposed[at], out=term)
    return total


def _is_zero(total: float, task: BucketTask, piece: BucketSlice) -> bool:
    """Tell whether all entries are zero; a GradientError if one of them is not finite.

    Usually their sum decides. The sum of finite values may overflow: then check every entry.
    """
    if not math.isfinite(total):
        error = not_finite_error(task, [piece], -1)
        if error is not None:
            raise error
    if total != 0.0:
        return False
    gradient = task.bucket.gradient_there(piece.start, piece.stop, task.scale)
    return not task.bucket.read(gradient.any())
