"""The process of one rank of two nodes: see `nodes`."""

import functools
import json
import sys
import warnings
from collections.abc import Iterator

import torch
from torch import Tensor
from torch.nn.parallel import DistributedDataParallel

import gradwire
from gradwire.torch import ddp

from .exchange_rank import Layers, Method, serve

LAYERS, SIDE = 10, 500
NUMEL = LAYERS * SIDE**2


def _model() -> DistributedDataParallel:
    layers = Layers(torch.zeros(LAYERS, SIDE, SIDE))
    return DistributedDataParallel(layers, gradient_as_bucket_view=True, bucket_cap_mb=4)


def _methods() -> Iterator[tuple[str, Method]]:
    yield "plain DDP", (_model(), lambda: None)
    for ratio in (0.01, 0.001):
        for hierarchy in (None, 2):
            model = _model()
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", ddp.PairingWarning)
                handle = ddp.attach(model, gradwire.topk(ratio=ratio), hierarchy=hierarchy)
            name = f"topk({ratio})" + (", hierarchy=2" if hierarchy else "")
            # Of four ranks, a ring's all-gather crosses the link with one of two ranks of a node.
            part = functools.partial(_sent, handle, 1.0 if hierarchy else 0.5)
            yield name, (model, part)


def _sent(handle: ddp.Handle, part: float) -> float:
    return part * handle.report().wire_bytes


def _gradients() -> tuple[Tensor, ...]:
    return tuple(torch.randn(SIDE, SIDE) ** 3 for _ in range(LAYERS))


if __name__ == "__main__":
    serve(json.loads(sys.argv[1]), _gradients, _methods, NUMEL)
