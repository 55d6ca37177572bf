"""The bytes that real processes send are those that the cost model says."""

import pytest
import torch
from torch import nn

import gradwire
from gradwire.cost import Link, Network, Payload, calibrate, compressed, simulate
from gradwire.cost.exchanges import RingAllReduce
from gradwire.quantize import BFloat16
from tests.distributed.codecs import CODECS, OWNED
from tests.distributed.scenarios.common import attached

SIDE, LAYERS = 256, 3
SENT = {
    "topk": gradwire.topk(ratio=0.05),
    "onebit": gradwire.onebit(),
    "dense": gradwire.dense(exchange=gradwire.exchange.AllReduce()),
    "randomk": gradwire.randomk(ratio=0.1),
    "scalecom": gradwire.scalecom(ratio=0.05),
    "half": gradwire.scalecom(ratio=0.05, quantize=BFloat16()),
    "scattered": CODECS["scattered"],
    "quantized": CODECS["quantized"],
    "levels": OWNED["qsgd"],
}
"""A codec for each exchange, and one whose values have 16 bits."""


def bytes_sent(rank, size):
    """Return the bytes that a rank sends per step with each codec, and those of plain DDP."""
    found = {}
    for name, codec in SENT.items():
        torch.manual_seed(0)
        layers = [nn.Linear(SIDE, SIDE, bias=False) for _ in range(LAYERS)]
        with attached(nn.Sequential(*layers), codec) as (model, handle):
            for step in range(10):
                if step == 6:  # limits of slots have settled
                    handle.metrics(reset=True)
                torch.manual_seed(size * step + rank)
                model(torch.randn(16, SIDE)).square().mean().backward()
            figures = handle.metrics()
            found[name] = figures["wire_bytes"], figures["dense_wire_bytes"]
    return found


def test_ranks_send_the_bytes_that_the_simulator_says(ranks, monkeypatch):
    monkeypatch.setattr("gradwire.cost.calibration.NUMELS", (1 << 12, SIDE**2))
    calibration = calibrate(SENT, seconds=0.01)
    sent = ranks.run(bytes_sent)
    network = Network(len(sent), Link(1e9))
    numel = LAYERS * SIDE**2
    dense = simulate(RingAllReduce(), Payload.dense(numel), network).sent
    for name in SENT:
        method = compressed(name, calibration)
        found = simulate(method.exchange, method.payload(numel, LAYERS), network).sent
        mean = sum(each[name][0] for each in sent) / len(sent)
        assert found == pytest.approx(mean, rel=0.06), name
        assert dense == sent[0][name][1]
