"""Process groups: none is left behind, and none of the wrong ranks is taken."""

import gc
import os
from pathlib import Path
from typing import Any

import torch.distributed as dist
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook
from torch.nn.parallel import DistributedDataParallel

import gradwire
import gradwire.torch.ddp
from tests.distributed.scenarios.common import fingerprint, network, reaches, train
from tests.distributed.scenarios.exchanges import exchanged


def _held() -> tuple[int, int]:
    """Threads and file descriptors of this process."""
    gc.collect()
    return len(os.listdir("/proc/self/task")), len(os.listdir("/proc/self/fd"))


def _settled() -> tuple[int, int]:
    """What is held once the process has no threads of gradwire or of its groups that are ending."""
    counts = [_held()]

    def steady() -> bool:
        counts.append(_held())
        return len(counts) > 5 and len(set(counts[-5:])) == 1

    reaches(steady)
    return counts[-1]


def _no_more_than(before: tuple[int, int]) -> bool:
    """Whether no more is held than before, as soon as threads that are ending have ended."""
    return reaches(lambda: all(now <= then for now, then in zip(_held(), before, strict=True)))


def _drop(rank: int, exchange: str) -> None:
    model = DistributedDataParallel(network())
    gradwire.torch.ddp.attach(model, exchanged(exchange))
    train(model, rank, range(2))
    dist.barrier()  # dropping waits for nobody: let no rank cut off another one


def dropped(rank: int, world_size: int, exchange: str) -> bool:
    """Drop models without detaching their handles; tell whether they are gone without a trace."""
    _drop(rank, exchange)
    before = _settled()
    for _ in range(3):
        _drop(rank, exchange)
    return _no_more_than(before)


def refused(rank: int, world_size: int) -> dict[str, Any]:
    """Attach in ways that are refused after groups were made, and before."""
    hooked = DistributedDataParallel(network())
    hooked.register_comm_hook(dist.group.WORLD, allreduce_hook)
    model = DistributedDataParallel(network())
    texts = []

    def refuse() -> None:
        for each, codec in (
            (model, gradwire.topk(ratio=0.1 + rank / 10)),
            (model, {"mistyped": gradwire.topk(ratio=0.1)}),
            (hooked, gradwire.topk(ratio=0.1)),
        ):
            try:
                gradwire.torch.ddp.attach(each, codec)
            except ValueError as error:
                texts.append(str(error))

    refuse()
    before = _settled()
    for _ in range(3):
        refuse()
    gone = _no_more_than(before)
    model.register_comm_hook(dist.group.WORLD, allreduce_hook)  # nothing was registered on it
    return {"gone": gone, "texts": texts}


def _group(*ranks: int) -> dist.ProcessGroup:
    group = dist.new_group(list(ranks), use_local_synchronization=True)
    assert isinstance(group, dist.ProcessGroup)
    return group


def other_ranks(rank: int, world_size: int) -> dict[str, str]:
    """A model over all ranks, and groups over one and over as many."""
    alone = _group(rank)
    codec = gradwire.topk(ratio=0.05)
    model = DistributedDataParallel(network())
    found = {}
    try:
        gradwire.torch.ddp.attach(model, codec, process_group=alone)
    except ValueError as error:
        found["fewer"] = str(error)
    single = DistributedDataParallel(network(), process_group=alone)
    try:
        gradwire.torch.ddp.attach(single, codec, process_group=dist.group.WORLD)
    except ValueError as error:
        found["more"] = str(error)
    same = _group(*range(world_size))
    handle = gradwire.torch.ddp.attach(model, codec, process_group=same)
    train(model, rank, range(3))
    handle.detach()
    found["same"] = fingerprint(model)
    return found


def initialized_again(rank: int, world_size: int, folder: str) -> tuple[str, int]:
    """Detach once torch.distributed was shut down and initialized again; then train on."""
    codec = gradwire.topk(ratio=0.05)
    model = DistributedDataParallel(network())
    handle = gradwire.torch.ddp.attach(model, codec)
    train(model, rank, range(2))
    dist.barrier()
    dist.destroy_process_group()
    dist.init_process_group(
        "gloo", init_method=f"file://{Path(folder)}/again", rank=rank, world_size=world_size
    )
    saved = handle.state_dict()
    handle.detach()
    again = DistributedDataParallel(model.module)
    with_state = gradwire.torch.ddp.attach(again, codec)
    with_state.load_state_dict(saved)
    train(again, rank, range(2, 4))
    steps = with_state.step
    with_state.detach()
    return fingerprint(again), steps
