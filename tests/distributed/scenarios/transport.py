"""Channels alone, without a model."""

import time
from datetime import timedelta
from typing import Any
from unittest.mock import patch

import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d

from gradwire.torch.transport import store as gloo
from gradwire.torch.transport.process_group import ProcessGroups


def _groups(timeout: timedelta | None = None) -> ProcessGroups:
    assert dist.group.WORLD is not None
    return ProcessGroups(dist.group.WORLD, timeout)


def _part(sender: int, receiver: int, turn: int) -> torch.Tensor:
    """Return what one rank sends another: of another length each time, or nothing."""
    count = (sender * 7 + receiver * 3 + turn * 1009) % 5 * 20_000
    return torch.full((count,), 16 * sender + receiver + turn, dtype=torch.uint8)


def swapped(rank: int, world_size: int) -> list[bool]:
    """Exchange parts several times at once; tell whether each came to where it belongs."""
    groups = _groups()
    channel = groups.make()
    ranks = range(world_size)
    turns = []
    for turn in range(4):
        mine = [_part(rank, other, turn) for other in ranks]
        expected = torch.cat([_part(other, rank, turn) for other in ranks])
        sizes = [each.numel() for each in mine]
        theirs = [_part(other, rank, turn).numel() for other in ranks]
        out = torch.empty_like(expected)
        turns.append((channel.all_to_all(out, torch.cat(mine), theirs, sizes), out, expected))
    found = []
    for work, out, expected in turns:
        work.wait()
        found.append(torch.equal(out, expected))
    groups.leave()
    return found


def left_at_once(rank: int, world_size: int) -> int:
    """Leave each group as soon as this rank has it."""
    for _ in range(100):
        groups = _groups()
        groups.make()
        groups.leave()
    return rank


def left_under_way(rank: int, world_size: int) -> float:
    """Leave while a collective waits for a rank that never starts it; return the seconds."""
    groups = _groups(timedelta(seconds=60))
    channel = groups.make()
    began = time.monotonic()
    if rank == 0:
        channel.all_reduce(torch.zeros(1))
        del channel
        groups.leave()
    took = time.monotonic() - began
    dist.barrier()
    return took


def gathered(rank: int, world_size: int, store: str) -> list[bool]:
    """Gather long and short messages, by both kinds of channels of Gloo."""
    shared = gloo.stores.FileStore(store, world_size)
    transports: list[Any] = [
        _groups(),
        gloo.Gloo(shared, rank, world_size, timedelta(seconds=60)),
    ]
    found = []
    for transport in transports:
        channel = transport.make()
        for count in (1, 500_000):
            out = torch.zeros(world_size * count, dtype=torch.int32)
            channel.all_gather(out, torch.full((count,), rank, dtype=torch.int32)).wait()
            expected = torch.arange(world_size, dtype=torch.int32).repeat_interleave(count)
            found.append(torch.equal(out, expected))
        transport.leave()
    return found


def alone(rank: int, world_size: int) -> tuple[str, float]:
    """One rank does not come: return the error of the others, and after how long."""
    groups = _groups(timedelta(seconds=2))
    channel = groups.make()
    begin, said = time.perf_counter(), ""
    if rank:
        out = torch.zeros(world_size * 100_000)
        try:
            channel.all_gather(out, torch.zeros(100_000)).wait()
        except RuntimeError as error:
            said = str(error)
    found = said, time.perf_counter() - begin
    dist.barrier()
    groups.leave()
    return found


def named(rank: int, world_size: int) -> list[str]:
    """Make groups of a part one after another, as where torch names them all alike; their names."""
    part: Any = dist.new_group(backend="gloo")
    found = []
    with patch.object(distributed_c10d, "_hash_ranks_to_str", lambda ranks: "the same"):
        for _ in range(2):
            groups = ProcessGroups(part, None)
            channels = [groups.make() for _ in range(2)]
            found += [str(channel.group.group_name) for channel in channels]
            groups.leave()
    return found
