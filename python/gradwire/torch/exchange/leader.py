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

from gradwire._native import Frame, pack_positions, unpack_positions
from gradwire.torch.engine.metrics import Outcomes
from gradwire.torch.engine.parameter import BucketSlice
from gradwire.torch.engine.step import BucketTask
from gradwire.torch.errors import ExchangeError
from gradwire.torch.exchange.value_sum import SharedSelection, ValueSumExchange
from gradwire.torch.exchange.wire import wait

_RECORD = struct.Struct("<II")  # size of the positions in bytes, and their size without a limit
_FAILED = 0xFFFFFFFF
_LEAST = 64  # smallest limit of a frame in bytes: its header must fit
_TRIES = 9


class LeaderExchange(ValueSumExchange):
    """Sums values at the positions selected by one rank, the leader."""

    # The sending thread -----------------------------------------------------------------------

    def _select_shared(self, task: BucketTask, sequence: int) -> SharedSelection:
        """Broadcast positions from each rank that leads any piece, in the same order everywhere."""
        count = len(task.contents.pieces)
        nothing = np.empty(0, np.uint32)
        selection = SharedSelection([0] * count, [nothing] * count, {}, [0] * count)
        by_leader: dict[int, list[int]] = {}
        for index, piece in enumerate(task.contents.pieces):
            leader = (task.step.number + piece.parameter.turn) % self.world_size
            by_leader.setdefault(leader, []).append(index)
        messages = []
        for leader, members in by_leader.items():
            limits = [task.contents.pieces[index].parameter.limit.nbytes for index in members]
            message = torch.zeros(len(members) * _RECORD.size + sum(limits), dtype=torch.uint8)
            if leader == self.rank:
                self._select_as_leader(task, members, limits, message.numpy(), selection)
            self._keep(message)
            work = self.channel.broadcast(message, leader)
            selection.collectives += 1
            selection.room += message.numel()
            messages.append((members, message, work))
        for members, message, work in messages:
            wait(work, sequence)
            self._read(task, members, message.numpy(), selection)
        return selection

    def _select_as_leader(
        self,
        task: BucketTask,
        members: Sequence[int],
        limits: Sequence[int],
        message: NDArray[np.uint8],
        selection: SharedSelection,
    ) -> None:
        """Select entries and write their positions, or write that this rank failed."""
        at = len(members) * _RECORD.size
        try:
            task.check()
            for place, (index, limit) in enumerate(zip(members, limits, strict=True)):
                positions, wanted, encoded = self._lead(task, task.contents.pieces[index], limit)
                nbytes = len(positions)
                message[at : at + nbytes] = np.frombuffer(positions, np.uint8)
                _RECORD.pack_into(message.data, place * _RECORD.size, nbytes, wanted)
                at += nbytes
                selection.encoded[index] = encoded
        except BaseException as error:  # of any kind: the other ranks wait for this message
            selection.error = error
            _RECORD.pack_into(message.data, 0, _FAILED, 0)

    def _lead(
        self, task: BucketTask, piece: BucketSlice, limit: int
    ) -> tuple[bytes, int, tuple[Outcomes, torch.Tensor]]:
        """Encode one parameter, repeatedly until its positions fit into a number of bytes.

        Returns the positions, their size without the limit, the outcome, and the values where
        frames are. Raises an ExchangeError if no positions fit.
        """
        parameter, bucket = piece.parameter, task.bucket
        most, room, wanted = parameter.codec.max_encoded_len(parameter.numel), 0, 0
        frames = self._frames.take(most, task.step.number, bucket)
        try:
            for _ in range(_TRIES):
                outcomes = self._encode(task, [piece], [room or most], frames)
                nbytes = int(outcomes.nbytes[0])
                frame = Frame(bucket.read_headers(frames.view(1, -1), nbytes)[0])
                positions = pack_positions(frame)
                wanted = wanted or len(positions)
                if len(positions) <= limit:
                    values, _ = bucket.values_of(frames, [nbytes], (), False)
                    return positions, wanted, (outcomes, values)
                # Entries that are left out stay in the residual, as with a full slot.
                room = max(_LEAST, (room or nbytes) * limit // len(positions) - 8)
                task.step.undo([parameter])
        finally:
            self._frames.give(frames)  # to this thread, which works in its own order
        message = f"{limit} bytes are too few for any positions of {parameter.name!r}"
        raise ExchangeError(message)

    def _read(
        self,
        task: BucketTask,
        members: Sequence[int],
        message: NDArray[np.uint8],
        selection: SharedSelection,
    ) -> None:
        at = len(members) * _RECORD.size
        records = [
            _RECORD.unpack_from(message.data, place * _RECORD.size) for place in range(len(members))
        ]
        if records[0][0] == _FAILED:
            return  # the leader reports the reason with its values
        for index, (nbytes, wanted) in zip(members, records, strict=True):
            parameter = task.contents.pieces[index].parameter
            if at + nbytes > message.size:
                raise ExchangeError(f"the positions of {parameter.name!r} exceed their size limit")
            positions = unpack_positions(message[at : at + nbytes], parameter.numel)
            selection.positions[index] = positions
            selection.counts[index] = positions.size
            selection.nbytes[index] = nbytes
            task.step.observe([parameter], [wanted])
            at += nbytes
