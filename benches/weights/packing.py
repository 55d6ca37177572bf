"""A trained model at a setting: what of it is packed, in how many bytes, and how it reads."""

import copy
import functools
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from benches.accuracy.run import Task, evaluate
from gradwire import weights
from gradwire.quantize import Affine

from .plan import FLOAT, Activations, Setting

MATRICES = (nn.Linear, nn.Conv2d, nn.GRU, nn.LSTM)
FIRST, FURTHER = 4, 4
"""Bits that are packed apart."""
ROWS = 16
"""Of x, at most, that are multiplied without decoding the weights."""


def matrices(net: nn.Module) -> dict[str, Tensor]:
    """Return the weights that are packed, by name: no embeddings, biases or norms."""
    return {
        f"{name}.{own}".lstrip("."): weight
        for name, module in net.named_modules()
        if isinstance(module, MATRICES)
        for own, weight in module.named_parameters(recurse=False)
        if weight.ndim >= 2
    }


def quantizer(setting: Setting) -> Affine:
    """Return what the first bits are packed by."""
    bits = FIRST if setting.nested else setting.bits
    return Affine(bits, setting.block, setting.fit)


def bench(task: Task, net: nn.Module) -> Callable[[Setting], dict[str, Any]]:
    """Return what measures a trained model at a setting."""
    return functools.partial(measure, task, net)


@torch.no_grad()
def measure(task: Task, net: nn.Module, setting: Setting) -> dict[str, Any]:
    """Return loss and accuracy on all held-out data, and bytes: of the matrices, and of all."""
    if setting == FLOAT:
        read, packed = net, None
    elif setting.activations is not None:
        read, packed = multiplied(net, setting, setting.activations)
    else:
        read, packed = decoded(net, setting)
    return {**evaluate(task, read.eval()), **sizes(net, packed)}


def sizes(net: nn.Module, packed: int | None = None) -> dict[str, int]:
    """Return entries, of all and of the matrices, and bytes, where these take so many packed."""
    numel = sum(each.numel() for each in matrices(net).values())
    others = sum(each.nbytes for each in net.state_dict().values()) - 4 * numel
    packed = 4 * numel if packed is None else packed
    return {
        "parameters": sum(each.numel() for each in net.parameters()),
        "entries": numel,
        "packed_bytes": packed,
        "bytes": packed + others,
    }


def decoded(net: nn.Module, setting: Setting) -> tuple[nn.Module, int]:
    """Return a copy whose matrices are those that are read, and the bytes that are read for it."""
    net = copy.deepcopy(net)
    nbytes = 0
    for weight in matrices(net).values():
        array = weight.detach().numpy()
        packed = weights.pack(array, quantizer(setting), more=(FURTHER,) if setting.nested else ())
        if setting.nested:
            packed = packed.keep(setting.bits)
        nbytes += packed.nbytes
        weight.detach().copy_(torch.from_numpy(packed.unpack()))
    return net, nbytes


class FewRows(nn.Module):
    """A linear layer that gets so few rows at a time that it multiplies packed bytes."""

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, x: Tensor) -> Tensor:
        rows = x.reshape(-1, x.shape[-1])
        y = torch.cat([self.layer(part) for part in torch.split(rows, ROWS)])
        return y.view(*x.shape[:-1], -1)


def multiplied(net: nn.Module, setting: Setting, activations: Activations) -> tuple[nn.Module, int]:
    """Return a copy whose linear layers multiply from packed bytes, and those of all matrices."""
    from gradwire.torch.weights import PackedLinear, pack

    net = copy.deepcopy(net)
    rules = {**dict.fromkeys(matrices(net), quantizer(setting)), "*": None}
    report = pack(net, rules)
    for parent in list(net.modules()):
        for name, child in list(parent.named_children()):
            if isinstance(child, PackedLinear):
                child.activations = activations
                setattr(parent, name, FewRows(child))
    return net, sum(each.nbytes for each in report.tensors)
