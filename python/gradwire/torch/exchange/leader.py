"""The exchange with leaders: a broadcast of their positions, then a sum of values.

Chen et al., "ScaleCom", NeurIPS 2020, section 2. Each parameter has a leader that changes with
every step. ``Parameter.turn`` is the parameter's position in bucket sizes, so a bucket mostly has
one leader and the next bucket another one. The leader does not depend on how DDP has grouped the
parameters: a resumed run, which starts with other buckets, must not differ.
"""

import struct
from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray

from gradwire._native import unpack_positions
from gradwire.errors import NonFiniteError
from gradwire.torch.backends.interface import LeaderEncoding as Selected
from gradwire.torch.engine.parameter import BucketSlice
from gradwire.torch.engine.step import BucketTask
from gradwire.torch.errors import ExchangeError
from gradwire.torch.exchange.dense import named, wait
from gradwire.torch.exchange.value_sum import ValueSumExchange
from gradwire.torch.exchange.vectors import Chosen
from gradwire.torch.transport import Work

__all__ = ["LeaderExchange"]

_RECORD = struct.Struct("<II")  # size of the positions in bytes, and their size without a limit
_FAILED = 0xFFFFFFFF


class LeaderExchange(ValueSumExchange):
    """Sums values at the positions that one rank has selected."""

    # The sending thread -----------------------------------------------------------------------

    def _choose(self, job: BucketTask, sequence: int) -> Chosen:
        pieces = job.layout.pieces
        nothing = np.empty(0, np.uint32)
        chosen = Chosen([0] * len(pieces), [nothing] * len(pieces), None, {}, [0] * len(pieces))
        messages = self._broadcast(job, chosen)
        for members, message, work in messages:
            wait(work, sequence)
            self._read(job, members, message.numpy(), chosen)
        return chosen

    def _broadcast(
        self, job: BucketTask, chosen: Chosen
    ) -> list[tuple[list[int], torch.Tensor, Work]]:
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
            work = self.channel.broadcast(message, leader)
            chosen.collectives += 1
            chosen.room += message.numel()
            messages.append((members, message, work))
        return messages

    def _lead(
        self,
        job: BucketTask,
        members: Sequence[int],
        limits: Sequence[int],
        message: NDArray[np.uint8],
        chosen: Chosen,
    ) -> None:
        """Select entries and write their positions, or write that this rank failed."""
        at = len(members) * _RECORD.size
        try:
            job.check()
            for place, (index, limit) in enumerate(zip(members, limits, strict=True)):
                piece = job.layout.pieces[index]
                led = _select(job, piece, limit)
                self._encoded(job, piece)
                nbytes = len(led.positions)
                message[at : at + nbytes] = np.frombuffer(led.positions, np.uint8)
                _RECORD.pack_into(message.data, place * _RECORD.size, nbytes, led.wanted)
                at += nbytes
                chosen.made[index] = self._outcomes(job, led.table), led.values
        except BaseException as error:  # of any kind: the other ranks wait for this message
            chosen.error = error
            _RECORD.pack_into(message.data, 0, _FAILED, 0)

    def _read(
        self, job: BucketTask, members: Sequence[int], message: NDArray[np.uint8], chosen: Chosen
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


def _select(job: BucketTask, piece: BucketSlice, limit: int) -> Selected:
    """Encode a piece, with positions within the limit."""
    parameter = piece.parameter
    try:
        led = job.bucket.encode_leader(
            parameter.codec, parameter.state, piece.start, piece.stop, limit, job.scale
        )
    except NonFiniteError as error:
        raise named(error, piece) from error
    if led is None:
        raise ExchangeError(f"{limit} bytes are too few for any positions of {parameter.name!r}")
    return led
