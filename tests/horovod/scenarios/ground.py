"""What Horovod does with the calls that an exchange is made of."""

import threading
import time
from typing import Any

import horovod.torch as hvd
import torch


def _blob(rank: int, length: int) -> torch.Tensor:
    return torch.full((length,), 10 * rank + length % 7, dtype=torch.uint8)


def _expected(lengths: list[int]) -> list[int]:
    return [value for rank, n in enumerate(lengths) for value in _blob(rank, n).tolist()]


def gather(rank: int, world_size: int, rounds: list[list[int]]) -> bool:
    """Gather blobs of a length for each rank, round by round, under one name."""
    found = [hvd.allgather(_blob(rank, lengths[rank]), name="blob") for lengths in rounds]
    return all(
        each.dtype == torch.uint8 and each.tolist() == _expected(lengths)
        for each, lengths in zip(found, rounds, strict=True)
    )


def reorder(rank: int, world_size: int) -> bool:
    """Submit four tensors in another order on every rank, and wait in yet another."""
    names = [f"reorder.{i}" for i in range(4)]
    order = names[rank:] + names[:rank]
    handles = {name: hvd.allgather_async(_blob(rank, int(name[-1])), name=name) for name in order}
    found = {name: hvd.synchronize(handles[name]).tolist() for name in reversed(names)}
    return found == {name: _expected([int(name[-1])] * world_size) for name in names}


def thread(rank: int, world_size: int, rounds: int) -> list[str]:
    """Submit and wait on two threads at once, each with names of its own."""
    wrong: list[str] = []

    def work(which: str) -> None:
        for step in range(rounds):
            length = (step + rank) % 5
            handle = hvd.allgather_async(_blob(rank, length), name=f"thread.{which}")
            lengths = [(step + each) % 5 for each in range(world_size)]
            if hvd.synchronize(handle).tolist() != _expected(lengths):
                wrong.append(f"{which}, round {step}")

    threads = [threading.Thread(target=work, args=(which,)) for which in "ab"]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    return wrong


def twice(rank: int, world_size: int) -> str:
    """Submit a name that is still in flight."""
    first = None
    if rank == 0:
        first = hvd.allgather_async(_blob(rank, 3), name="twice")
    try:
        if rank == 0:
            hvd.synchronize(hvd.allgather_async(_blob(rank, 3), name="twice"))
    except Exception as error:
        said = f"{type(error).__name__}: {error}"
    else:
        said = ""
    hvd.barrier()
    if rank != 0:
        first = hvd.allgather_async(_blob(rank, 3), name="twice")
    assert hvd.synchronize(first).tolist() == _expected([3] * world_size)
    return said


def disagree(rank: int, world_size: int) -> dict[str, str]:
    """Submit one name with another type or number of dimensions on each rank."""
    first = rank == 0
    calls = {
        "type": lambda: hvd.allgather_async(
            torch.zeros(2, dtype=torch.uint8 if first else torch.int32), name="type"
        ),
        "dimensions": lambda: hvd.allgather_async(
            torch.zeros((2,) if first else (2, 2), dtype=torch.uint8), name="dimensions"
        ),
    }
    found = {}
    for what, call in calls.items():
        try:
            hvd.synchronize(call())
        except Exception as error:
            found[what] = f"{type(error).__name__}: {error}"
    return found


def process_sets(rank: int, world_size: int) -> dict[str, Any]:
    """Gather among ranks 1 and 2, in a set that is made after Horovod began."""
    members = [1, 2]
    made = hvd.add_process_set(members)
    try:
        found: dict[str, Any] = {"included": made.included(), "size": None, "gathered": None}
        if made.included():
            found["size"] = made.size()
            found["rank"] = made.rank()
            found["gathered"] = hvd.allgather(
                _blob(rank, rank), name="set", process_set=made
            ).tolist() == [v for each in members for v in _blob(each, each).tolist()]
        else:
            try:
                hvd.allgather(_blob(rank, rank), name="set", process_set=made)
            except Exception as error:
                found["refused"] = f"{type(error).__name__}: {error}"
        found["everywhere"] = gather(rank, world_size, [[1] * world_size])
    finally:
        hvd.remove_process_set(made)
    return found


def polled(rank: int, world_size: int) -> bool:
    """Ask whether a result is there, instead of waiting, which keeps a core busy."""
    handle = hvd.allgather_async(_blob(rank, 5), name="polled")
    while not hvd.poll(handle):
        time.sleep(1e-4)
    return bool(hvd.synchronize(handle).tolist() == _expected([5] * world_size))
