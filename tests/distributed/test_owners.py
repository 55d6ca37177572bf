"""Laws of both exchanges in which ranks own ranges: steps that fail, and other owners."""

import os
from unittest import mock

import numpy as np
import pytest
import torch
from torch.nn.parallel import DistributedDataParallel

import gradwire
import gradwire.torch.ddp
from gradwire.torch import backends
from gradwire.torch.ddp import ExchangeError, GradientError
from gradwire.torch.engine.step import Step
from tests.distributed.codecs import CODECS, OWNED, SEVERAL
from tests.distributed.ranks import alike, on
from tests.distributed.scenarios.common import (
    Given,
    Sums,
    attached,
    bits_left,
    integers,
    network,
    residuals,
    train,
)

SPARSE = CODECS["scattered"]
both = pytest.mark.parametrize("codec", [SPARSE, CODECS["quantized"]], ids=["sparse", "quantized"])


@pytest.mark.parametrize("codec", [SPARSE, OWNED["qsgd-kept"]], ids=["sparse", "quantized"])
@on("ranks")
def test_a_step_that_does_not_count_leaves_no_trace_in_the_residuals_of_owners(rank, codec):
    with attached(Given(), codec, **SEVERAL) as (model, handle):

        def backward(gradients):
            model.zero_grad()
            model(gradients).backward()

        for step in range(3):
            backward(integers(1, rank, step))
        before = bits_left(handle)
        backward(integers(1, rank, 3))
        assert before != bits_left(handle)
        handle.discard()
        assert before == bits_left(handle)
        bad = integers(1, rank, 3)
        if rank == 1:
            bad["b"][3, 2] = np.inf
        # Sums of finite entries that are not finite: only their owner sees them.
        large = integers(1, rank, 3)
        large["a"][5, 7] = 3e38
        for given, name, first in ((bad, "b", 3 * 30 + 2), (large, "a", 5 * 40 + 7)):
            with pytest.raises(GradientError) as caught:
                backward(given)
            error = caught.value
            assert alike((error.name, error.rank, error.first))[::2] == (name, first)
            assert name == "a" or error.rank == 1
            assert before == bits_left(handle)
        backward(integers(1, rank, 4))
        assert before != bits_left(handle)
        assert handle.step == 4


def fails(rank, where, how, codec):
    """After two good steps rank 1 fails in one phase: check what each rank sees and keeps."""
    module = network()
    model = DistributedDataParallel(module, **SEVERAL)
    handle = gradwire.torch.ddp.attach(model, codec)
    train(model, rank, range(2))
    before = bits_left(handle)

    def trouble(*_, **__):
        if how == "dies":
            os._exit(7)
        raise MemoryError(f"no memory to {where}")

    real, calls = Step.undo, []

    def undo(step, parameters):
        calls.append(step)
        if len(calls) == 1:
            trouble()
        real(step, parameters)

    (bucket,) = {type(backends.backend_for(each).bucket(each)) for each in module.parameters()}
    place, name, replaced = {
        "encode": (bucket, "encode", trouble),
        "cut": (bucket, "split", trouble),
        "undo": (Step, "undo", undo),
        "merge": (bucket, "merge", trouble),
    }[where]
    did = "encode" if where in ("encode", "cut") else "merge what it owns"
    said = f"rank 1 could not {did}: MemoryError: no memory to {where}"
    if how == "dies":
        said = "another rank has stopped"
    with (
        mock.patch.object(place, name, replaced if rank == 1 else getattr(place, name)),
        pytest.raises(ExchangeError, match=said),
    ):
        train(model, rank, range(2, 3))
    assert before == bits_left(handle)
    with pytest.raises(ExchangeError, match="stopped after an earlier error"):
        train(model, rank, range(3, 4))
    handle.detach()


@both
@pytest.mark.parametrize("where", ["encode", "cut", "undo", "merge"])
@on("two")
def test_a_rank_that_fails_in_any_phase_is_an_error_of_all(rank, where, codec):
    fails(rank, where, "raises", codec)


@both
@pytest.mark.parametrize("where", ["cut", "merge"])
def test_a_rank_that_dies_in_any_phase_is_an_error_of_the_others(expendable, where, codec):
    (kind, found), other = expendable.try_run(fails, where=where, how="dies", codec=codec)
    assert other[0] == "died"
    assert kind == "returned", found


def save(rank, folder, codec):
    """Leave something in the residuals, and a file for each rank."""
    with attached(Given(), codec) as (model, handle):
        for step in range(3):
            model.zero_grad()
            model(integers(9, rank, step)).backward()
        torch.save(handle.state_dict(), folder / f"rank{rank}.pt")


def load(rank, size, folder, codec):
    """Load the files of two ranks, and go on: other ranks own the entries."""
    saved = [torch.load(folder / f"rank{old}.pt", weights_only=True) for old in range(2)]
    sums = Sums()
    for old, each in enumerate(saved):
        held = each[f"rank{old}"]["residual"]
        assert all(values.any() for values in held.values())
        if rank == 0:
            sums.give(held)
    with attached(Given(), codec, **SEVERAL) as (model, handle):
        handle.load_state_dict(saved, policy="sum-and-split")
        for step in range(3, 6):
            model.zero_grad()
            model(sums.give(integers(9, rank, step))).backward()
            sums.take(model.module)
        sums.check(residuals(handle), 1e-3 if codec == SPARSE else 5e-3)


@both
def test_nothing_is_lost_when_other_ranks_own_the_entries(two, three, tmp_path, codec):
    two.run(save, folder=tmp_path, codec=codec)
    three.run(load, folder=tmp_path, codec=codec)


@both
@on("four")
def test_what_cannot_work_is_refused_by_name(codec):
    tensor = torch.ones(2000)
    state = gradwire.torch.init_state(codec, tensor)
    with pytest.raises(ValueError, match=r"all_reduce\(\) gathers frames or sums val") as caught:
        gradwire.torch.all_reduce(tensor, codec, state)
    assert repr(codec.exchange) in str(caught.value)
    model = DistributedDataParallel(network())
    with pytest.raises(ValueError, match="the ranks of a node divide it already") as caught:
        gradwire.torch.ddp.attach(model, codec, hierarchy=2)
    assert repr(codec.exchange) in str(caught.value)
