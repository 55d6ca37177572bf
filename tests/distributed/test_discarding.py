"""Gradients that a program throws away leave nothing in the residuals, if it says so."""

import contextlib

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn.functional import mse_loss
from torch.nn.parallel import DistributedDataParallel

import gradwire
import gradwire.torch.ddp
from tests.distributed.codecs import SEVERAL
from tests.distributed.ranks import alike, on
from tests.distributed.scenarios.common import (
    Given,
    attached,
    batch,
    fingerprint,
    gradients_of,
    integers,
    network,
    plain,
)


def skipping(rank, how):
    """Skip a step if the norm exceeds 10; one batch in the middle is bad."""
    torch.manual_seed(0)
    teacher, skipped = nn.Linear(32, 16), []
    model = DistributedDataParallel(network(), **SEVERAL)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    with contextlib.ExitStack() as stack:
        if how != "dense":
            seen = optimizer if how == "optimizer" else None
            handle = gradwire.torch.ddp.attach(model, gradwire.topk(ratio=0.05), optimizer=seen)
            stack.callback(handle.detach)
        for step in range(40):
            inputs = batch(rank, step, rows=32)[0]
            optimizer.zero_grad()
            loss = mse_loss(model(inputs), teacher(inputs).detach())
            (loss * (1e4 if step == 10 else 1.0)).backward()
            if nn.utils.clip_grad_norm_(model.parameters(), float("inf")) > 10.0:
                skipped.append(step)
                if how == "discard":
                    handle.discard()
                continue
            optimizer.step()
    inputs = batch(7, 1000, rows=256)[0]
    with torch.no_grad():
        loss = mse_loss(model.module(inputs), teacher(inputs))
    return skipped, float(loss), fingerprint(model)


@on("two")
def test_a_loop_that_skips_large_norms_skips_one_step_as_dense_training_does(rank):
    ways = ("dense", "", "discard", "optimizer")
    dense, neither, discard, seen = (skipping(rank, how) for how in ways)
    assert alike(discard) == seen, "attach sees the optimizer, which makes no step"
    assert dense[0] == discard[0] == [10]
    assert len(neither[0]) > 5, "what the bad batch left comes again and again"
    assert discard[1] < 1.1 * dense[1]


@on("two")
def test_discard_and_paused_where_there_is_nothing_to_do(rank):
    scaler = torch.amp.GradScaler("cpu", init_scale=8.0)
    none = "there is no step to discard"
    options = {"grad_scaler": scaler}
    with attached(Given(), gradwire.topk(ratio=0.05), options=options, **SEVERAL) as run:
        model, handle = run

        def go(gradients):
            model.zero_grad()
            scaler.scale(model(gradients)).backward()

        with pytest.raises(ValueError, match=none):
            handle.discard()
        go(integers(1, rank, 0))
        handle.discard()
        with pytest.raises(ValueError, match=none):
            handle.discard()
        bad = integers(1, rank, 1)
        bad["a"][0, 0] = torch.inf if rank == 0 else 1.0
        go(integers(1, rank, 1))
        before = plain(handle.state_dict())
        go(bad)
        handle.discard()  # skipped by the scaler
        with handle.paused():
            go(bad)
            assert not np.isfinite(gradients_of(model.module)["a"]).all(), "as in plain DDP"
        handle.discard()
        with handle.paused(), handle.paused():
            go(integers(1, rank, 2))
            mean = sum(integers(1, each, 2)["c"].double().numpy() for each in range(2)) / 2
            np.testing.assert_array_equal(gradients_of(model.module)["c"] / 8.0, mean)
        assert before == plain(handle.state_dict())
        assert handle.step == 1
        go(integers(1, rank, 3))
        handle.epoch(1)
        with pytest.raises(ValueError, match=none):
            handle.discard()
    with pytest.raises(ValueError, match="is detached"):
        handle.discard()
    with pytest.raises(ValueError, match="is detached"):
        handle.paused().__enter__()
