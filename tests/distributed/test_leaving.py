"""What a handle took, it gives back; and it takes no ranks but the model's."""

import gc
import os
import re

import pytest
import torch.distributed as dist
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook
from torch.nn.parallel import DistributedDataParallel

import gradwire
import gradwire.torch.ddp
from tests.distributed.codecs import CODECS
from tests.distributed.ranks import alike, on
from tests.distributed.scenarios.common import fingerprint, network, reaches, train

TOPK = CODECS["default"]


def held():
    """Threads and file descriptors of this process."""
    gc.collect()
    return len(os.listdir("/proc/self/task")), len(os.listdir("/proc/self/fd"))


def leaves_nothing(act):
    """Check that no more is held after some acts than after one, once threads have ended."""
    act()
    counts = [held()]

    def steady():
        counts.append(held())
        return len(counts) > 5 and len(set(counts[-5:])) == 1

    reaches(steady)
    for _ in range(3):
        act()
    assert reaches(lambda: all(now <= then for now, then in zip(held(), counts[-1], strict=True)))


@pytest.mark.parametrize("name", ["senders", "leader"])
@on("two")
def test_a_model_that_is_dropped_leaves_no_process_group(rank, name):
    def drop():
        model = DistributedDataParallel(network())
        gradwire.torch.ddp.attach(model, CODECS[name])
        train(model, rank, range(2))
        dist.barrier()  # dropping waits for nobody: let no rank cut off another one

    leaves_nothing(drop)


@on("two")
def test_a_refused_attach_leaves_no_process_group(rank):
    """After groups were made, and before."""
    model, hooked = (DistributedDataParallel(network()) for _ in range(2))
    hooked.register_comm_hook(dist.group.WORLD, allreduce_hook)

    def refuse():
        for each, codec, said in (
            (model, gradwire.topk(ratio=0.1 + rank / 10), "different codec"),
            (model, {"mistyped": TOPK}, "no parameter is called 'mistyped'"),
            (hooked, TOPK, "already has a communication hook"),
        ):
            with pytest.raises(ValueError, match=said):
                gradwire.torch.ddp.attach(each, codec)

    leaves_nothing(refuse)
    model.register_comm_hook(dist.group.WORLD, allreduce_hook)  # nothing was registered on it


@on("two")
def test_a_group_of_other_ranks_than_the_model_is_refused(rank, size):
    alone, same = (
        dist.new_group(ranks, use_local_synchronization=True)
        for ranks in ([rank], list(range(size)))
    )
    model = DistributedDataParallel(network())
    single = DistributedDataParallel(network(), process_group=alone)
    for each, group, ranks, its in (
        (model, alone, [rank], [0, 1]),
        (single, dist.group.WORLD, [0, 1], [rank]),
    ):
        said = re.escape(f"has ranks {ranks}, but the model has ranks {its}")
        with pytest.raises(ValueError, match=said):
            gradwire.torch.ddp.attach(each, TOPK, process_group=group)
    with gradwire.torch.ddp.attach(model, TOPK, process_group=same):
        train(model, rank, range(3))
    alike(fingerprint(model))


@on("expendable")
def test_detach_after_torch_distributed_was_initialized_again(rank, size, tmp_path):
    """Then train on."""
    model = DistributedDataParallel(network())
    handle = gradwire.torch.ddp.attach(model, TOPK)
    train(model, rank, range(2))
    dist.barrier()
    dist.destroy_process_group()
    store = f"file://{tmp_path}/again"
    dist.init_process_group("gloo", init_method=store, rank=rank, world_size=size)
    saved = handle.state_dict()
    handle.detach()
    again = DistributedDataParallel(model.module)
    with gradwire.torch.ddp.attach(again, TOPK) as with_state:
        with_state.load_state_dict(saved)
        train(again, rank, range(2, 4))
        assert with_state.step == 4
    alike(fingerprint(again))
