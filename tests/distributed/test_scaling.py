"""Loss scaling: steps that do not count. See also `test_conformance`."""

import warnings

import numpy as np
import pytest
import torch
from torch.nn.parallel import DistributedDataParallel

import gradwire
import gradwire.torch.ddp
from tests.distributed.codecs import CODECS, SEVERAL
from tests.distributed.ranks import on
from tests.distributed.scenarios.common import (
    SHAPES,
    Given,
    attached,
    bits_left,
    fingerprint,
    gradients_of,
    integers,
    network,
    residuals,
    train,
)


@on("two")
def test_a_loss_scale_of_a_power_of_two_changes_no_bit(rank):
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0, growth_interval=2)
    with attached(network(), CODECS["default"]) as (plain, _):
        train(plain, rank, range(6))
    options = {"grad_scaler": scaler}
    with attached(network(), CODECS["default"], options=options) as (model, _):
        train(model, rank, range(6), scaler=scaler)
    assert fingerprint(plain) == fingerprint(model)
    assert scaler.get_scale() > 1024.0, "the scale was to change on the way"


@on("two")
def test_an_average_that_overflows_is_rolled_back_too(rank):
    """Finite float16 gradients on every rank, whose average with the residual is too large."""
    scaler = torch.amp.GradScaler("cpu", init_scale=1.0)
    module = Given({"a": torch.float16})
    options = {"grad_scaler": scaler}
    with attached(module, gradwire.topk(k=1), options=options, **SEVERAL) as (model, handle):
        for step in range(2):
            gradients = integers(7, rank, step)
            gradients["a"] = torch.zeros(SHAPES["a"])
            gradients["a"][0, :2] = torch.tensor([60000.0, 49984.0])  # the second has to wait
            if step == 1:
                before = bits_left(handle)
                assert residuals(handle)["a"][1] == 49984.0
                gradients["a"][0, 0] = 0.0
            model.zero_grad()
            scaler.scale(model(gradients)).backward()
        assert not any(np.isfinite(each).any() for each in gradients_of(module).values())
        assert before == bits_left(handle)


@pytest.mark.parametrize(
    ("codec", "kind", "given"),
    [("adam", torch.optim.AdamW, {}), ("dgc", torch.optim.SGD, {"momentum": 0.9})],
)
@on("two")
def test_a_loss_scaler_that_attach_was_not_given_is_told(rank, codec, kind, given):
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    model = DistributedDataParallel(network())
    optimizer = kind(model.parameters(), lr=1e-3, **given)
    with (
        warnings.catch_warnings(record=True) as caught,
        gradwire.torch.ddp.attach(model, codec, optimizer=optimizer, min_numel=65),
    ):
        warnings.simplefilter("always")
        train(model, rank, range(3), scaler=scaler, optimizer=optimizer)
    texts = [str(each.message) for each in caught]
    assert sum("attach(..., grad_scaler=)" in each for each in texts) == 1
