"""Bytes that ranks send with each exchange."""

import dataclasses

import torch
from torch import nn

import gradwire
from tests.distributed.scenarios.common import attached

SIDE, LAYERS = 256, 3


def bytes_sent(rank: int, world_size: int) -> dict[str, tuple[float, float]]:
    """Return the bytes that a rank sends per step with each codec, and those of plain DDP."""
    found = {}
    for name, make in codecs().items():
        torch.manual_seed(0)
        layers = [nn.Linear(SIDE, SIDE, bias=False) for _ in range(LAYERS)]
        with attached(nn.Sequential(*layers), make) as (model, handle):
            for step in range(10):
                if step == 6:  # limits of slots have settled
                    handle.metrics(reset=True)
                torch.manual_seed(world_size * step + rank)
                model(torch.randn(16, SIDE)).square().mean().backward()
            figures = handle.metrics()
            found[name] = figures["wire_bytes"], figures["dense_wire_bytes"]
    return found


def codecs() -> dict[str, gradwire.Codec]:
    """Return a codec for each exchange, and one whose values have 16 bits."""
    return {
        "topk": gradwire.topk(ratio=0.05),
        "onebit": gradwire.onebit(),
        "dense": gradwire.dense(exchange=gradwire.exchange.AllReduce()),
        "randomk": gradwire.randomk(ratio=0.1),
        "scalecom": gradwire.scalecom(ratio=0.05),
        "half": gradwire.scalecom(ratio=0.05, quantize=gradwire.quantize.BFloat16()),
        "scattered": dataclasses.replace(
            gradwire.topk(ratio=0.05), exchange=gradwire.exchange.ReduceScatter()
        ),
        "quantized": gradwire.onebit(exchange=gradwire.exchange.QuantizedAllReduce()),
        "levels": gradwire.qsgd(exchange=gradwire.exchange.QuantizedAllReduce()),
    }
