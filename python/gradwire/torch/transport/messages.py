"""What ranks tell each other: JSON of a bounded length, which is read without running anything."""

import json
import math
from typing import Any, Protocol

import torch

from gradwire.torch.errors import ExchangeError
from gradwire.torch.transport.channel import Work

__all__ = ["all_gather", "read"]

LIMIT = 1 << 26
"""Bytes of a message, at most."""

DEPTH = 64
"""Lists and dicts within each other, at most."""


class _Gathering(Protocol):
    """The part of a channel that is needed."""

    @property
    def size(self) -> int: ...

    def all_gather(self, out: torch.Tensor, mine: torch.Tensor) -> Work: ...


def read(data: bytes | str, limit: int = LIMIT) -> Any:
    """Read JSON from a source that is not trusted.

    Raises
    ------
    ValueError
        It is no JSON, not finite, longer than so many bytes, or nested too deeply.
    """
    if len(data) > limit:
        raise ValueError(f"it has {len(data)} bytes, at most {limit} were expected")
    text = data if isinstance(data, str) else data.decode()
    try:
        found = json.loads(text, parse_float=_finite, parse_constant=_finite)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
    _check_depth(found)
    return found


def _finite(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise ValueError(f"it has the number {text}, which is not finite")
    return value


def _check_depth(found: Any) -> None:
    level = [found]
    for _ in range(DEPTH):
        level = [
            inner
            for each in level
            if isinstance(each, dict | list)
            for inner in (each.values() if isinstance(each, dict) else each)
        ]
        if not level:
            return
    raise ValueError(f"it is nested more than {DEPTH} deep")


def all_gather(channel: _Gathering, mine: Any) -> list[Any]:
    """Return what all ranks tell, in rank order. A collective.

    Parameters
    ----------
    channel : Channel
        One for tensors of the CPU.
    mine : object
        Text, finite numbers, bool, None, and lists, tuples and dicts of these. Tuples arrive as
        lists, and keys as text, on this rank too.

    Raises
    ------
    ExchangeError
        On every rank: one of them has something else to tell, or too much.
    """
    failure: Exception | None = None
    data = b""
    try:
        data = json.dumps(mine, allow_nan=False, separators=(",", ":")).encode()
    except (TypeError, ValueError, RecursionError) as error:  # the other ranks wait for a message
        failure = error
    lengths = torch.zeros(channel.size, dtype=torch.int64, device="cpu")
    channel.all_gather(lengths, torch.tensor([len(data)], device="cpu")).wait()
    for rank, length in enumerate(lengths.tolist()):
        if length == 0:
            reason = "" if failure is None else f": {failure}"
            raise ExchangeError(
                f"rank {rank} has something to tell that JSON cannot hold{reason}", rank
            ) from failure
        if not 0 < length <= LIMIT:
            raise ExchangeError(
                f"rank {rank} sends a message of {length} bytes, expected at most {LIMIT}", rank
            )
    longest = int(lengths.max())
    message = torch.frombuffer(bytearray(data.ljust(longest)), dtype=torch.uint8)
    every = message.new_empty(channel.size * longest)
    channel.all_gather(every, message).wait()
    return [_read(rank, row) for rank, row in enumerate(every.view(channel.size, longest))]


def _read(rank: int, row: torch.Tensor) -> Any:
    try:
        return read(row.numpy().tobytes())
    except ValueError as error:
        raise ExchangeError(f"rank {rank} sent a message that cannot be read: {error}", rank) from (
            error
        )
