"""What channels of Gloo deliver, and that a rank which stays away is an error in time."""

import time
from datetime import timedelta
from unittest import mock

import pytest
import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d

from gradwire.torch.transport import store as gloo
from gradwire.torch.transport.process_group import PointToPoint, ProcessGroups
from tests.distributed.ranks import alike, on


def groups_of(timeout=None):
    return ProcessGroups(dist.group.WORLD, timeout)


def part(sender, receiver, turn):
    """Return what one rank sends another: of another length each time, or nothing."""
    count = (sender * 7 + receiver * 3 + turn * 1009) % 5 * 20_000
    return torch.full((count,), 16 * sender + receiver + turn, dtype=torch.uint8)


@on("ranks")
def test_parts_of_any_length_come_to_their_ranks(rank, size):
    """Several times at once."""
    groups, turns = groups_of(), []
    channel = groups.make()
    for turn in range(4):
        mine = [part(rank, other, turn) for other in range(size)]
        theirs = [part(other, rank, turn) for other in range(size)]
        sizes = ([each.numel() for each in parts] for parts in (theirs, mine))
        out = torch.empty_like(torch.cat(theirs))
        work = channel.all_to_all(out, torch.cat(mine), *sizes)
        turns.append((work, out, torch.cat(theirs)))
    for work, out, expected in turns:
        work.wait()
        assert torch.equal(out, expected)
    groups.leave()


@on("ranks")
def test_a_group_that_one_rank_leaves_at_once_is_there_on_all():
    for _ in range(25):
        groups = groups_of()
        groups.make()
        groups.leave()


@on("two")
def test_leaving_does_not_wait_for_what_another_rank_never_starts(rank):
    groups = groups_of(timedelta(seconds=60))
    channel = groups.make()
    began = time.monotonic()
    if rank == 0:
        channel.all_reduce(torch.zeros(1))
        del channel
        groups.leave()
    assert time.monotonic() - began < 30.0
    dist.barrier()


@on("ranks")
def test_messages_are_gathered_in_the_order_of_ranks(rank, size, tmp_path):
    """Long and short ones, by both kinds of channels of Gloo."""
    shared = gloo.stores.FileStore(str(tmp_path / "s"), size)
    for transport in (groups_of(), gloo.Gloo(shared, rank, size, timedelta(seconds=60))):
        channel = transport.make()
        for count in (1, 500_000):
            out = torch.zeros(size * count, dtype=torch.int32)
            channel.all_gather(out, torch.full((count,), rank, dtype=torch.int32)).wait()
            expected = torch.arange(size, dtype=torch.int32).repeat_interleave(count)
            assert torch.equal(out, expected)
        transport.leave()


@on("two")
def test_a_rank_that_stays_away_is_an_error_after_the_timeout(rank, size):
    groups = groups_of(timedelta(seconds=2))
    channel, begin = groups.make(), time.perf_counter()
    if rank:
        with pytest.raises(RuntimeError, match=r"[Tt]imed out"):
            channel.all_gather(torch.zeros(size * 100_000), torch.zeros(100_000)).wait()
    assert time.perf_counter() - begin < 30.0
    dist.barrier()
    groups.leave()


@pytest.mark.parametrize("timeout", [None, timedelta(seconds=3)])
def test_a_message_that_was_given_up_is_an_error(timeout):
    came, lost = (mock.Mock(**{"wait.return_value": each}) for each in (True, False))
    PointToPoint([came, came], timeout).wait()
    with pytest.raises(RuntimeError, match="given up"):
        PointToPoint([came, lost], timeout).wait()
    given = mock.call() if timeout is None else mock.call(timeout)
    assert came.wait.mock_calls == [given] * 3
    assert lost.wait.mock_calls == [given]


@on("two")
def test_a_group_has_no_name_of_one_before_it():
    """Groups of a part one after another, as where torch names them all alike."""
    whole, found = dist.new_group(backend="gloo"), []
    with mock.patch.object(distributed_c10d, "_hash_ranks_to_str", return_value="the same"):
        for _ in range(2):
            groups = ProcessGroups(whole, None)
            channels = [groups.make() for _ in range(2)]
            found += [str(channel.group.group_name) for channel in channels]
            groups.leave()
    assert len(set(alike(found))) == 4
