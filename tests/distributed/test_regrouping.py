"""Training goes on with other ranks than it began with, without a restart."""

import contextlib
from unittest import mock

import pytest
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

import gradwire
import gradwire.torch.ddp
from gradwire.exchange import AllGather, ByRanks, ReduceScatter
from gradwire.torch.ddp import ExchangeError
from tests.distributed.codecs import CODECS, SEVERAL
from tests.distributed.ranks import Ranks, alike, on
from tests.distributed.scenarios.common import attached, bits_left, fingerprint, network, train
from tests.distributed.troubles import Troubled, die

pytestmark = pytest.mark.waits  # for ranks that died


def group_of(ranks):
    return dist.new_group(ranks, use_local_synchronization=True)


def a_rank_dies(rank, name):
    """Rank 1 of 3 dies in its step; ranks 0 and 2 go on under other numbers."""
    module = Troubled()
    model = DistributedDataParallel(module, **SEVERAL)
    with mock.patch.object(ByRanks, "MANY", 3):
        handle = gradwire.torch.ddp.attach(model, CODECS[name])
    train(model, rank, range(3))
    three, before = handle.report().exchange, bits_left(handle)
    prints = [fingerprint(module)]
    if rank == 1:
        module.trouble = die
    with contextlib.suppress(ExchangeError):
        train(model, rank, range(3, 4))
    assert "broken" in repr(handle)
    assert before == bits_left(handle)
    left = group_of([0, 2])
    model._update_process_group(left)
    with mock.patch.object(ByRanks, "MANY", 3):
        handle.regroup(left)
    two = handle.report().exchange
    assert before == bits_left(handle)
    assert (handle.world_size, handle.rank, handle.step) == (2, rank // 2, 3)
    assert handle.error is None
    train(model, rank, range(3, 6))
    assert handle.step == 6
    handle.detach()
    if name == "default":  # if three ranks were many
        assert (three, two) == (repr(ReduceScatter()), repr(AllGather()))
    else:
        assert three == two
    return [*prints, fingerprint(module)]


@pytest.mark.parametrize(
    "name",
    [
        *(pytest.param(n, marks=pytest.mark.full) for n in ("senders", "scattered")),
        "leader",
        "default",
    ],
)
def test_the_others_go_on_when_a_rank_dies(nursery, name):
    ranks = Ranks(nursery, 3, timeout=8.0)
    try:
        outcomes = ranks.try_run(a_rank_dies, name=name)
    finally:
        ranks.stop()
    (kind, first), (dead, _), (other, third) = outcomes
    assert (kind, dead, other) == ("returned", "died", "returned"), outcomes
    assert first == third


@on("two")
def test_what_cannot_be_regrouped_goes_on_as_before(rank):
    alone = group_of([rank])
    with attached(network(), gradwire.topk(0.1)) as (model, handle):
        train(model, rank, range(2))
        with pytest.raises(ValueError, match=r"the model has ranks \[0, 1\]"):
            handle.regroup(alone)
        train(model, rank, range(2, 4))
        alike(fingerprint(model))
        handle.regroup()  # the same ranks again
        train(model, rank, range(4, 6))
        alike(fingerprint(model))
        assert handle.step == 6
    with pytest.raises(ValueError, match="detached"):
        handle.regroup(alone)
