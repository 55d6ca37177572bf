"""DDP's modes do what they promise, and residuals survive them."""

import gc
import threading
import weakref

import pytest
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

import gradwire
import gradwire.torch.ddp
from tests.distributed.codecs import SEVERAL
from tests.distributed.ranks import alike, on
from tests.distributed.scenarios.common import (
    Given,
    Sums,
    attached,
    batch,
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


@on("two")
def test_two_models_share_a_backward_pass(rank):
    """As adversarial training has it, each with its codec."""
    with (
        attached(network(1), TOPK, **SEVERAL) as (one, _),
        attached(network(2), gradwire.sidco(ratio=0.05), **SEVERAL) as (two, _),
    ):
        optimizer = torch.optim.SGD([*one.parameters(), *two.parameters()], lr=0.05)
        for step in range(5):
            inputs, targets = batch(rank, step)
            optimizer.zero_grad()
            (one(inputs) * two(inputs) - targets).square().mean().backward()
            optimizer.step()
        alike((fingerprint(one), fingerprint(two)))


@on("two")
def test_a_model_that_is_forgotten_leaves_no_threads(rank):
    others = threading.enumerate()  # an earlier model's may still be ending
    model = DistributedDataParallel(network())
    handle = gradwire.torch.ddp.attach(model, TOPK)
    train(model, rank, range(2))
    new = [each for each in threading.enumerate() if each not in others]
    threads = [each for each in new if each.name.startswith("gradwire")]
    weight, kept = weakref.ref(model.module[0].weight), weakref.ref(handle)
    del model, handle
    gc.collect()
    for thread in threads:
        thread.join(30.0)
    assert [thread.is_alive() for thread in threads] == [False, False]
    assert kept() is None
    assert weight() is None


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
