"""Ranks that join, and a rank that dies: the others go on in another process group."""

import contextlib
import time
from typing import Any
from unittest import mock

import numpy as np
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

import gradwire
import gradwire.torch.ddp
from gradwire.exchange import ByRanks
from gradwire.torch.ddp import ExchangeError
from tests.distributed.scenarios.common import (
    SMALL_BUCKETS,
    attached,
    fingerprint,
    network,
    residuals,
    train,
)
from tests.distributed.scenarios.exchanges import exchanged
from tests.distributed.scenarios.failures import Troubled, die


def group_of(ranks: list[int]) -> Any:
    return dist.new_group(ranks, use_local_synchronization=True)


def a_rank_dies(rank: int, world_size: int, exchange: str) -> dict[str, Any]:
    """Rank 1 of 3 dies in its step; ranks 0 and 2 go on under other numbers."""
    found: dict[str, Any] = {}
    module = Troubled()
    model = DistributedDataParallel(module, bucket_cap_mb=SMALL_BUCKETS)
    with mock.patch.object(ByRanks, "MANY", 3):
        handle = gradwire.torch.ddp.attach(model, exchanged(exchange))
    train(model, rank, range(3))
    exchanges = [handle.report().exchange]
    found["three"] = fingerprint(module)
    before = residuals(handle)
    if rank == 1:
        module.trouble = die
    with contextlib.suppress(ExchangeError):
        train(model, rank, range(3, 4))
    found["broken"] = repr(handle)
    after = residuals(handle)
    found["undone"] = all(np.array_equal(before[name], after[name]) for name in before)
    left = group_of([0, 2])
    model._update_process_group(left)
    with mock.patch.object(ByRanks, "MANY", 3):
        handle.regroup(left)
    found["exchanges"] = [*exchanges, handle.report().exchange]
    kept = residuals(handle)
    found["kept"] = all(np.array_equal(before[name], kept[name]) for name in before)
    found["left"] = handle.world_size, handle.rank, handle.step, repr(handle.error)
    train(model, rank, range(3, 6))
    found["two"] = fingerprint(module)
    found["steps"] = handle.step
    handle.detach()
    return found


def refusals(rank: int, world_size: int) -> dict[str, Any]:
    """A group that the model does not have; a handle that is detached. It goes on as before."""
    found: dict[str, Any] = {}
    alone = group_of([rank])
    with attached(network(), gradwire.topk(0.1)) as (model, handle):
        train(model, rank, range(2))
        try:
            handle.regroup(alone)
        except ValueError as error:
            found["ranks"] = str(error)
        train(model, rank, range(2, 4))
        found["fingerprint"] = fingerprint(model)
        handle.regroup()  # the same ranks again
        train(model, rank, range(4, 6))
        found["again"] = fingerprint(model)
        found["step"] = handle.step
    try:
        handle.regroup(alone)
    except ValueError as error:
        found["detached"] = str(error)
    time.sleep(0.1)
    return found
