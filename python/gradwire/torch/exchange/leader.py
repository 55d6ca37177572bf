"""The exchange with leaders: a broadcast of their positions, then a sum of values.

Chen et al., "ScaleCom", NeurIPS 2020, section 2. Each parameter has a leader that changes with
every step. ``Parameter.turn`` is the parameter's position in bucket sizes, so a bucket mostly has
one leader and the next bucket another one. The leader does not depend on how DDP has grouped the
parameters: a resumed run, which starts with other buckets, must not differ.
"""

import struct
from collections.abc import Sequence
from functools import partial

import numpy as np
import torch
from numpy.typing import NDArray
from typing_extensions import override

from gradwire._native import Frame, pack_positions, unpack_positions
from gradwire.torch.engine.metrics import Outcomes
from gradwire.torch.engine.parameter import BucketSlice
from gradwire.torch.errors import ExchangeError
from gradwire.torch.exchange.value_sum import SummedBucket
from gradwire.torch.exchange.wire import wait

_RECORD = struct.Struct("<II")  # size of the positions in bytes, and their size without a limit
_FAILED = 0xFFFFFFFF
_LEAST = 64  # smallest limit of a frame in bytes: its header must fit
_TRIES = 9


class LedBucket(SummedBucket):
    """Sums values at the positions selected by one rank, the leader."""

    @override
    def select(self) -> object:
        """Broadcast positions from each rank that leads any piece, in the same order everywhere."""
        pieces, exchange = self.contents.pieces, self.exchange
        self.counts = [0] * len(pieces)
        self.positions = [np.empty(0, np.uint32)] * len(pieces)
        by_leader: dict[int, list[int]] = {}
        for index, piece in enumerate(pieces):
            leader = (self.task.step.number + piece.parameter.turn) % exchange.world_size
            by_leader.setdefault(leader, []).append(index)
        messages = []
        for leader, members in by_leader.items():
            limits = [pieces[index].parameter.limit.nbytes for index in members]
            message = torch.zeros(len(members) * _RECORD.size + sum(limits), dtype=torch.uint8)
            if leader == exchange.rank:
                self._select_as_leader(members, limits, message.numpy())
            nbytes, share = message.numel(), 1 - 1 / exchange.world_size
            broadcast = partial(exchange.channels[0].broadcast, source=leader)
            self.begin(broadcast, message, room=nbytes, sent=nbytes * share)
            messages.append((members, message))
        for members, message in messages:
            wait(self.works.pop(0), self.sequence)
            self._read(members, message.numpy())
        return None

    def _select_as_leader(
        self, members: Sequence[int], limits: Sequence[int], message: NDArray[np.uint8]
    ) -> None:
        """Select entries and write their positions, or write that this rank failed."""
        at = len(members) * _RECORD.size
        try:
            if self.task.error is not None:
                raise self.task.error
            for place, (index, limit) in enumerate(zip(members, limits, strict=True)):
                positions, wanted, encoded = self.lead(self.contents.pieces[index], limit)
                nbytes = len(positions)
                message[at : at + nbytes] = np.frombuffer(positions, np.uint8)
                _RECORD.pack_into(message.data, place * _RECORD.size, nbytes, wanted)
                at += nbytes
                self.encoded[index] = encoded
        except BaseException as error:  # of any kind: the other ranks wait for this message
            self.failure = error
            _RECORD.pack_into(message.data, 0, _FAILED, 0)

    def lead(
        self, piece: BucketSlice, limit: int
    ) -> tuple[bytes, int, tuple[Outcomes, torch.Tensor]]:
        """Encode one parameter, repeatedly until its positions fit into a number of bytes.

        Returns the positions, their size without the limit, the outcome, and the values where
        frames are. Raises an ExchangeError if no positions fit.
        """
        parameter, bucket, pool = piece.parameter, self.bucket, self.exchange.frames
        most, room, wanted = parameter.codec.max_encoded_len(parameter.numel), 0, 0
        frames = pool.take(most, self.task.step.number, bucket)
        try:
            for _ in range(_TRIES):
                outcomes = self.encode([piece], [room or most], frames)
                nbytes = int(outcomes.nbytes[0])
                frame = Frame(bucket.read_headers(frames.view(1, -1), nbytes)[0])
                positions = pack_positions(frame)
                wanted = wanted or len(positions)
                if len(positions) <= limit:
                    values, _ = bucket.values_of(frames, [nbytes], (), False)
                    return positions, wanted, (outcomes, values)
                # Entries that are left out stay in the residual, as with a full slot.
                room = max(_LEAST, (room or nbytes) * limit // len(positions) - 8)
                self.task.step.undo([parameter])
        finally:
            pool.give(frames)  # to this thread, which works in its own order
        message = f"{limit} bytes are too few for any positions of {parameter.name!r}"
        raise ExchangeError(message)

    def _read(self, members: Sequence[int], message: NDArray[np.uint8]) -> None:
        at = len(members) * _RECORD.size
        records = list(_RECORD.iter_unpack(message[:at].tobytes()))
        if records[0][0] == _FAILED:
            return  # the leader reports the reason with its values
        for index, (nbytes, wanted) in zip(members, records, strict=True):
            parameter = self.contents.pieces[index].parameter
            if at + nbytes > message.size:
                raise ExchangeError(f"the positions of {parameter.name!r} exceed their size limit")
            positions = unpack_positions(message[at : at + nbytes], parameter.numel)
            self.positions[index] = positions
            self.counts[index] = positions.size
            self.nbytes[index] = nbytes
            self.task.step.observe([parameter], [wanted])
            at += nbytes
