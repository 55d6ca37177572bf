"""The exchange with leaders: a broadcast of their positions, then a sum of values.

Chen et al., "ScaleCom", NeurIPS 2020, section 2. Each parameter has a leader that changes with
every step. ``Parameter.turn`` is the parameter's position in bucket sizes, so a bucket mostly has
one leader and the next bucket another one. The leader does not depend on how DDP has grouped the
parameters: a resumed run, which starts with other buckets, must not differ.
"""

import struct
import time
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from numpy.typing import NDArray

from gradwire._native import Frame, pack_positions, unpack_positions
from gradwire.errors import NonFiniteError
from gradwire.torch.ddp.errors import ExchangeError
from gradwire.torch.ddp.exchange.pieces import named, wait
from gradwire.torch.ddp.exchange.summed import Chosen, Summed
from gradwire.torch.ddp.jobs import Job
from gradwire.torch.ddp.record import Piece
from gradwire.torch.ddp.report import Outcomes

__all__ = ["Led"]

_RECORD = struct.Struct("<II")  # size of the positions in bytes, and their size without a limit
_FAILED = 0xFFFFFFFF
_LEAST = 64  # smallest limit of a frame in bytes: its header must fit
_TRIES = 8


class Led(Summed):
    """Sums values at the positions that one rank has selected."""

    # The sending thread -----------------------------------------------------------------------

    def _choose(self, job: Job, sequence: int) -> Chosen:
        pieces = job.layout.pieces
        nothing = np.empty(0, np.uint32)
        chosen = Chosen([0] * len(pieces), [nothing] * len(pieces), None, {}, [0] * len(pieces))
        messages = self._broadcast(job, chosen)
        for members, message, work in messages:
            wait(work, sequence)
            self._read(job, members, message.numpy(), chosen)
        return chosen

    def _broadcast(
        self, job: Job, chosen: Chosen
    ) -> "list[tuple[list[int], torch.Tensor, dist.Work]]":
        """Start one broadcast per rank that leads for any piece, in the same order on all ranks."""
        by_leader: dict[int, list[int]] = {}
        for index, piece in enumerate(job.layout.pieces):
            leader = (job.step.number + piece.parameter.turn) % self.world_size
            by_leader.setdefault(leader, []).append(index)
        messages = []
        for leader, members in by_leader.items():
            limits = [job.layout.pieces[index].parameter.limit.nbytes for index in members]
            message = torch.zeros(len(members) * _RECORD.size + sum(limits), dtype=torch.uint8)
            if leader == self.rank:
                self._lead(job, members, limits, message.numpy(), chosen)
            self._recent.append(message)
            ranks = dist.get_process_group_ranks(self.group)
            work = dist.broadcast(message, src=ranks[leader], group=self.group, async_op=True)
            assert work is not None  # with async_op
            chosen.collectives += 1
            chosen.room += message.numel()
            messages.append((members, message, work))
        return messages

    def _lead(
        self,
        job: Job,
        members: Sequence[int],
        limits: Sequence[int],
        message: NDArray[np.uint8],
        chosen: Chosen,
    ) -> None:
        """Select entries and write their positions, or write that this rank failed."""
        at = len(members) * _RECORD.size
        try:
            for place, (index, limit) in enumerate(zip(members, limits, strict=True)):
                start = time.perf_counter()
                piece = job.layout.pieces[index]
                source = self._gradient(job, piece)
                frame, positions, wanted = _select(piece, source, limit)
                self._encoded(job, piece)
                message[at : at + len(positions)] = np.frombuffer(positions, np.uint8)
                _RECORD.pack_into(message.data, place * _RECORD.size, len(positions), wanted)
                at += len(positions)
                chosen.made[index] = self._made(job, piece, frame, start)
        except BaseException as error:  # of any kind: the other ranks wait for this message
            chosen.error = error
            _RECORD.pack_into(message.data, 0, _FAILED, 0)

    def _read(
        self, job: Job, members: Sequence[int], message: NDArray[np.uint8], chosen: Chosen
    ) -> None:
        at = len(members) * _RECORD.size
        records = [
            _RECORD.unpack_from(message.data, place * _RECORD.size) for place in range(len(members))
        ]
        if records[0][0] == _FAILED:
            return  # the leader reports the reason with its values
        for index, (nbytes, wanted) in zip(members, records, strict=True):
            parameter = job.layout.pieces[index].parameter
            if at + nbytes > message.size:
                raise ExchangeError(f"the positions of {parameter.name!r} exceed their size limit")
            positions = unpack_positions(message[at : at + nbytes], parameter.numel)
            chosen.positions[index] = positions
            chosen.counts[index] = positions.size
            chosen.nbytes[index] = nbytes
            job.step.observe(parameter, wanted)
            at += nbytes

    def _made(
        self, job: Job, piece: Piece, frame: Frame, start: float
    ) -> tuple[Outcomes, NDArray[np.float32]]:
        """Return the outcome and the values of an encode that began at start."""
        last = piece.parameter.state.last
        target = -1 if last["target"] is None else last["target"]
        zero = not job.buffer[piece.start : piece.stop].any()
        values = frame.values()
        nanoseconds = round(1e9 * (time.perf_counter() - start))
        row = [frame.nbytes, frame.count, target, last["trimmed"], zero, nanoseconds]
        return Outcomes.of(np.array(row, np.int64)), values


def _select(piece: Piece, source: NDArray[Any], limit: int) -> tuple[Any, bytes, int]:
    """Return a frame, its positions within the limit, and their size in bytes without a limit."""
    parameter = piece.parameter
    codec, state = parameter.codec, parameter.state
    try:
        frame = codec.encode(source, state)
        positions = pack_positions(frame)
        wanted = len(positions)
        room = frame.nbytes
        for _ in range(_TRIES):
            if len(positions) <= limit:
                return frame, positions, wanted
            # Entries that are left out stay in the residual, as with a full slot.
            room = max(_LEAST, room * limit // len(positions) - 8)
            state.rollback()
            frame = codec.encode(source, state, max_nbytes=room)
            positions = pack_positions(frame)
    except NonFiniteError as error:
        raise named(error, piece) from error
    raise ExchangeError(f"{limit} bytes are too few for any positions of {parameter.name!r}")
