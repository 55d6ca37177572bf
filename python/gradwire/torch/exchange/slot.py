"""The bytes that one rank contributes to the all-gather of one bucket.

A slot has the same length on every rank: a header, one record per frame, the dense parameters in
their own dtype, the frames one after another, and unused room. A rank that cannot fill its slot
writes the reason instead, so the collective always completes and all ranks learn the reason.
"""

import enum
import json
import struct
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from gradwire.torch.engine.layout import Layout
from gradwire.torch.errors import ExchangeError

__all__ = ["Plan", "Reading", "Status", "read", "write_failure", "write_header"]

Bytes = NDArray[np.uint8]

_HEADER = struct.Struct("<4sB3xIIQ")  # magic, status, layout digest, message bytes, sequence number
_MAGIC = b"GWS1"
_RECORD = np.dtype([("size", "<u8"), ("wanted", "<u8"), ("zero", "<u8")])
_ALIGN = 64
_MINIMUM = 1024  # room for a readable message
_MESSAGE_AT = _HEADER.size
_NONE = np.empty(0, np.int64)


class Status(enum.IntEnum):
    """The status of a slot."""

    OK = 0
    NON_FINITE = 1
    FAILED = 2


def _align(nbytes: int) -> int:
    return -(-nbytes // _ALIGN) * _ALIGN


@dataclass(frozen=True, slots=True)
class Plan:
    """Sizes and offsets in the slots of one bucket, in bytes; the same on every rank."""

    limits: tuple[int, ...]
    records_at: int
    dense_at: int
    dense_end: int
    frames_at: int
    nbytes: int
    front: int  # of a slot that cannot be filled, its reason is here, over all that follows

    @classmethod
    def of(cls, layout: Layout, itemsize: int) -> "Plan":
        """Plan the slots of a bucket from the current limits."""
        limits = tuple([parameter.limit.nbytes for parameter in layout.compressed])
        records_at = _align(_HEADER.size)
        dense_at = _align(records_at + len(limits) * _RECORD.itemsize)
        dense_end = dense_at + layout.dense_numel * itemsize
        frames_at = _align(dense_end)
        nbytes = max(_MINIMUM, _align(frames_at + sum(limits)))
        front = max(_MINIMUM, dense_at)
        return cls(limits, records_at, dense_at, dense_end, frames_at, nbytes, front)

    def records(self, slot: Bytes) -> NDArray[np.void]:
        """Return a slot's records, one per frame: size, wanted size, whether the input was zero."""
        end = self.records_at + len(self.limits) * _RECORD.itemsize
        return slot[self.records_at : end].view(_RECORD)


@dataclass(frozen=True, slots=True)
class Reading:
    """The contents of one rank's slot, checked against the plan."""

    status: Status
    message: str  # of a failure
    reason: list[int]  # of a non-finite gradient: parameter's index, count, first position
    sizes: list[int]
    wanted: NDArray[np.int64]
    zeros: NDArray[np.bool_]  # of each frame


def write_header(slot: Bytes, layout: Layout, sequence: int) -> None:
    """Write the header of a slot whose contents are complete."""
    _HEADER.pack_into(slot.data, 0, _MAGIC, Status.OK, layout.digest, 0, sequence)


def write_failure(
    slot: Bytes, layout: Layout, sequence: int, status: Status, reason: str | list[int]
) -> None:
    """Replace a slot's contents with the reason for a failure."""
    text = reason if isinstance(reason, str) else json.dumps(reason)
    message = text.encode()[: _MINIMUM - _MESSAGE_AT]
    _HEADER.pack_into(slot.data, 0, _MAGIC, status, layout.digest, len(message), sequence)
    slot[_MESSAGE_AT : _MESSAGE_AT + len(message)] = np.frombuffer(message, np.uint8)


def read(slot: Bytes, rank: int, plan: Plan, layout: Layout, sequence: int) -> Reading:
    """Read the slot of a rank.

    Raises
    ------
    ExchangeError
        The rank is at another bucket, or its slot contradicts the plan.
    """
    magic, status, digest, length, theirs = _HEADER.unpack_from(slot.data)
    if magic != _MAGIC or status not in set(Status) or length > _MINIMUM - _MESSAGE_AT:
        raise ExchangeError(f"the slot of rank {rank} is not one of gradwire's", rank)
    if (digest, theirs) != (layout.digest, sequence):
        raise ExchangeError(
            f"rank {rank} is at bucket {theirs}, this rank at bucket {sequence}, with "
            f"{'the same' if digest == layout.digest else 'different'} parameters: the ranks did "
            "not run the same backward passes",
            rank,
        )
    if status != Status.OK:
        message = bytes(slot[_MESSAGE_AT : _MESSAGE_AT + length]).decode(errors="replace")
        reason = json.loads(message) if status == Status.NON_FINITE else []
        return Reading(Status(status), message, reason, [], _NONE, _NONE.astype(bool))
    records = plan.records(slot)
    sizes = records["size"]
    if (sizes > np.array(plan.limits, np.uint64)).any():
        raise ExchangeError(f"a frame of rank {rank} exceeds its size limit", rank)
    wanted, zeros = records["wanted"].astype(np.int64), records["zero"].astype(bool)
    return Reading(Status.OK, "", [], sizes.tolist(), wanted, zeros)
