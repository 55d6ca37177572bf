"""The process of one rank of the `layers` section: DDP over many small layers."""

import json
import sys
from collections.abc import Callable, Iterator

import torch
from torch import Tensor
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
from torch.nn.parallel import DistributedDataParallel

import gradwire

from .exchange_rank import Layers, Method, attach, serve
from .layers import PLAIN

LAYERS = 300
NUMELS = [2000 + 2000 * layer // LAYERS for layer in range(LAYERS)]
NUMEL = sum(NUMELS)
CODECS: dict[str, Callable[[], gradwire.Codec]] = {
    "gradwire topk, 0.01": lambda: gradwire.topk(ratio=0.01),
    "gradwire sidco, 0.01": lambda: gradwire.sidco(ratio=0.01),
    "gradwire threshold, 10": lambda: gradwire.threshold(threshold=10.0),
}


def _model() -> DistributedDataParallel:
    module = Layers([torch.zeros(numel) for numel in NUMELS])
    return DistributedDataParallel(module, gradient_as_bucket_view=True, init_sync=False)


def methods() -> Iterator[tuple[str, Method]]:
    model = _model()
    model.register_comm_hook(None, default_hooks.allreduce_hook)
    yield PLAIN, (model, lambda: 4.0 * NUMEL)
    for name, make in CODECS.items():
        model = _model()
        attach(model, make())
        yield name, (model, lambda: None)


def gradients() -> tuple[Tensor, ...]:
    return tuple(torch.randn(numel).mul_(torch.empty(numel).exponential_()) for numel in NUMELS)


if __name__ == "__main__":
    serve(json.loads(sys.argv[1]), gradients, methods, NUMEL)
