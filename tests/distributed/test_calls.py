"""A bucket is a call: the work of a step does not enter the compiled part for each parameter."""

import dataclasses
from typing import ClassVar

import numpy as np
import pytest
import torch

import gradwire
from gradwire import _native, extension
from gradwire.memory import Residual
from tests.distributed.codecs import CODECS
from tests.distributed.ranks import on
from tests.distributed.scenarios.common import (
    SHAPES,
    Given,
    attached,
    counted,
    gradients_of,
    integers,
    network,
    train,
)

CALLS = ("encode_bucket", "average_bucket", "read_bucket", "decode_add", "Frame")
GATHER = {"encode_bucket": 1, "average_bucket": 1}
SUM = {"encode_bucket": 1, "read_bucket": 1}
ALL = {"min_numel": 1}


@dataclasses.dataclass(frozen=True, repr=False)
class Above(extension.Sparsifier):
    """What exceeds a threshold, selected in Python."""

    kind: ClassVar[str] = "test_above"
    threshold: float = 0.0

    def select(self, values, *, step, key):
        return np.flatnonzero(np.abs(values) > self.threshold)


@pytest.mark.parametrize(
    ("codec", "expected"),
    [
        (gradwire.topk(ratio=0.05), GATHER),
        (gradwire.qsgd(bits=4), GATHER),
        (gradwire.Codec(sparsify=Above(0.01)), GATHER),  # selected in Python, encoded together
        (CODECS["reduce"], SUM),
        (gradwire.randomk(ratio=0.1), SUM),
    ],
    ids=["topk", "qsgd", "custom", "reduce", "drawn"],
)
@on("two")
def test_a_bucket_is_encoded_and_decoded_in_one_call(rank, codec, expected):
    """Of three steps of a network with several parameters in each bucket."""
    with attached(network(), codec, options=ALL) as (model, handle):
        train(model, rank, range(2))
        before = handle.metrics()["collectives"]
        with counted(_native, CALLS) as calls:
            train(model, rank, range(2, 5))
            buckets = handle.metrics()["collectives"] - before
    assert buckets >= 3
    assert calls == {name: buckets * times for name, times in expected.items()}


@pytest.mark.parametrize(
    ("dtype", "scaled"),
    [
        (torch.float32, False),
        (torch.float64, True),
        (torch.float16, True),
        (torch.bfloat16, False),
    ],
)
@on("two")
def test_a_sparsifier_in_python_sends_what_the_same_one_of_the_core_does(rank, dtype, scaled):
    found = []
    for sparsify in (Above(9.0), gradwire.sparsify.Threshold(9.0)):
        codec = gradwire.Codec(sparsify=sparsify, memory=Residual())
        scaler = torch.amp.GradScaler("cpu", init_scale=8.0, enabled=scaled)
        options = {**ALL, "grad_scaler": scaler if scaled else None}
        with attached(Given(dict.fromkeys(SHAPES, dtype)), codec, options=options) as (model, _):
            for step in range(3):
                model.zero_grad()
                scaler.scale(model(integers(3, rank, step))).backward()
            found.append(gradients_of(model.module))
    python, core = found
    assert any(each.any() for each in core.values())
    for name, values in core.items():
        np.testing.assert_array_equal(python[name], values)


@on("two")
def test_the_buffers_of_the_first_slots_do_not_stay(rank):
    nbytes = []
    with attached(network(), gradwire.threshold(threshold=10.0), options=ALL) as (model, handle):
        exchange = handle._engine.exchange
        for step in range(8):
            train(model, rank, range(step, step + 1))
            handle.metrics()
            nbytes.append(exchange.frames.nbytes + exchange.buffers.nbytes)
        numel = sum(each.numel() for each in model.parameters())
    assert nbytes[0] > 8 * numel  # nothing was seen yet: room for every entry
    assert nbytes[-1] < numel
