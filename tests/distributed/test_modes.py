"""DDP's modes do what they promise, and residuals survive them."""

import pytest
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

import gradwire
import gradwire.torch.ddp
from tests.distributed.codecs import SEVERAL
from tests.distributed.ranks import on
from tests.distributed.scenarios.common import (
    Given,
    Sums,
    attached,
    fingerprint,
    integers,
    network,
    residuals,
    train,
)

TOPK = gradwire.topk(ratio=0.05)


@on("two")
def test_no_sync_accumulates_without_a_collective(rank):
    sums = Sums()
    with attached(Given(), TOPK, **SEVERAL) as (model, handle):
        with model.no_sync():
            for step in range(2):
                model(sums.give(integers(2, rank, step))).backward()
        assert handle.report().collectives == 0
        model(sums.give(integers(2, rank, 2))).backward()
        sums.take(model.module)
        sums.check(residuals(handle))


@on("two")
def test_a_compiled_model_trains_like_the_eager_one(rank):
    with attached(network(), TOPK) as (eager, _):
        train(eager, rank, range(4))
    model = DistributedDataParallel(network())
    fast = torch.compile(model, backend="eager")
    with gradwire.torch.ddp.attach(fast, TOPK) as handle:
        train(fast, rank, range(4))
        assert handle.report().collectives > 0
    for one, other in zip(eager.parameters(), model.parameters(), strict=True):
        assert (one - other).abs().max() < 1e-6


@on("two")
def test_detach_goes_back_to_plain_ddp_and_attach_works_again(rank):
    model, plain = (DistributedDataParallel(network()) for _ in range(2))
    train(model, rank, range(2))
    train(plain, rank, range(4))
    first = gradwire.torch.ddp.attach(model, gradwire.topk(ratio=1.0))
    first.detach()
    first.detach()
    train(model, rank, range(2, 4))
    assert first.report().collectives == 0
    with pytest.raises(ValueError, match="is detached"):
        first.load_state_dict(first.state_dict())
    assert fingerprint(plain) == fingerprint(model)
    with gradwire.torch.ddp.attach(model, TOPK) as second:
        with pytest.raises(ValueError, match=r"detach\(\)"):
            gradwire.torch.ddp.attach(model, TOPK)
        train(model, rank, range(4, 6))
        assert second.report().compression > 2


@on("three")
def test_a_model_over_a_subgroup(rank):
    """Over some of the ranks only; the others know nothing of it."""
    group = dist.new_group([0, 1])
    if rank > 1:
        # torch counts the groups that a process makes, and names later ones by that count.
        for _ in range(2):
            dist.new_group([rank], use_local_synchronization=True)
    else:
        with attached(network(), TOPK, process_group=group) as (model, handle):
            train(model, rank, range(3))
            prints = [None, None]
            dist.all_gather_object(prints, fingerprint(model), group)
            assert prints[0] == prints[1]
            assert handle.world_size == 2
