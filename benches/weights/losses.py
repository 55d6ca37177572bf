"""How trained models read when they are packed: by the nearest codes, or by calibration."""

import copy
import functools
import signal
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from itertools import islice
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor, nn

import gradwire
from benches.accuracy.run import Task, evaluate
from gradwire import weights as core
from gradwire.quantize import Affine
from gradwire.torch import weights
from gradwire.weights import COMQ, GPTQ, Budget, MagR, Preparation, Solver

from . import models
from .models import Model

Fit = Literal["range", "zero", "sawb", "squares"]
Activations = Literal["float32", "int8"]

FITS: tuple[Fit, ...] = ("range", "zero", "sawb", "squares")
BITS, BLOCKS, BLOCK = (8, 4, 3, 2), (32, 64, 128), 64
MATRICES = (nn.Linear, nn.Conv2d, nn.GRU)
FIRST, FURTHER = 4, 4
"""Bits that are packed apart."""
ROWS = 16
"""Of x, at most, that are multiplied without decoding the weights."""


@dataclass(frozen=True)
class Nearest:
    """How a model is packed by the nearest codes, and read; 32 bits leave it as it is.

    ``nested``: 8 bits are packed as the first 4 and 4 further ones, and ``bits`` of them read.
    With ``activations``, linear layers multiply from the packed bytes; without, all is decoded.
    """

    bits: int = 32
    fit: Fit = "squares"
    block: int = BLOCK
    nested: bool = False
    activations: Activations | None = None

    def __str__(self) -> str:
        if self == FLOAT:
            return "float32"
        if self.nested:
            first = "first 4 of 4 + 4 bits" if self.bits == 4 else "4 + 4 bits"
            return f'{first}, `"{self.fit}"`, block {self.block}'
        words = f'{self.bits} bits, `"{self.fit}"`, block {self.block}'
        return f"{words}, multiplied in {self.activations}" if self.activations else words


FLOAT = Nearest()
USUAL = tuple(map(Nearest, BITS))
GRID = tuple(Nearest(bits, fit, block) for bits in BITS for block in BLOCKS for fit in FITS)
NESTED = tuple(Nearest(bits, "range", block, nested=True) for bits in (8, 4) for block in BLOCKS)
MULTIPLIED = tuple(
    Nearest(bits, activations=each) for bits in (8, 4) for each in ("float32", "int8")
)


@dataclass(frozen=True)
class Method:
    """What chooses codes: without a solver the nearest ones, with `allot` a budget too.

    ``sequential``: a layer is calibrated on what the packed ones before it make.
    """

    fit: Fit = "squares"
    rounding: Solver | None = None
    prepare: Preparation | None = None
    allot: Literal["loss", "errors"] | None = None
    sequential: bool = False


ZERO, RANGE, SEQUENTIAL = 'nearest, "zero"', 'nearest, "range"', "COMQ, sequential"
BUDGET = "Loss-based budget, COMQ, sequential"
METHODS = {
    ZERO: Method("zero"),
    RANGE: Method("range"),
    "GPTQ": Method(rounding=GPTQ()),
    "COMQ as in the paper": Method(rounding=COMQ(start="nearest", bases=False)),
    "MagR + GPTQ": Method(rounding=GPTQ(), prepare=MagR()),
    "MagR + COMQ": Method(rounding=COMQ(), prepare=MagR()),
    "COMQ": Method(rounding=COMQ()),
    SEQUENTIAL: Method(rounding=COMQ(), sequential=True),
    BUDGET: Method(rounding=COMQ(), allot="loss", sequential=True),
}
BATCHES, FEW, SEED = 32, 8, 1
"""Of a calibration, of these those that a budget's loss is taken of, and the seed of both."""
MEANS = (3.0, 2.5)
"""Bits of codes, on average, of which a budget gets the bytes."""


@dataclass(frozen=True)
class Calibrated:
    """How a model is packed by one of `METHODS`; without one it is as it was trained.

    ``bits`` are those of a code; of a budget the mean whose bytes it gets. ``seed`` is that of the
    calibration's batches; 0 where there is none.
    """

    method: str = ""
    bits: float = 32
    block: int = BLOCK
    seed: int = 0

    def __str__(self) -> str:
        return f"{self.method}, {self.bits:g} bits" if self.method else "float32"


PLAIN = Calibrated()
Setting = Nearest | Calibrated
KINDS: dict[str, type[Nearest] | type[Calibrated]] = {"weights": Nearest, "quantize": Calibrated}


def calibrated() -> Iterator[Calibrated]:
    yield PLAIN
    for name, method in METHODS.items():
        for bits in MEANS if method.allot else BITS:
            # At 8 bits, nothing is lost that later layers would see.
            if bits < 8 or not method.sequential:
                yield Calibrated(name, bits, seed=SEED if method.rounding else 0)


def settings(part: str, *, quick: bool) -> Iterable[Setting]:
    if part == "quantize":
        return calibrated()
    return dict.fromkeys([FLOAT, *USUAL, *(() if quick else (*GRID, *NESTED, *MULTIPLIED))])


def begin() -> None:
    """Make a process ready, which takes one thread and leaves it to its parent when to stop."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    torch.set_num_threads(1)
    gradwire.set_num_threads(1)


def train(model: Model, data: Path | None) -> None:
    bench(model, data)


@functools.cache
def bench(model: Model, data: Path | None) -> "Bench":
    task = models.task_of(model.name, data)
    return Bench(task, models.trained(model, task, models.FOLDER))


def row(order: tuple[Model, Setting, Path | None]) -> dict[str, Any]:
    model, setting, data = order
    about = {"model": model.name, "title": model.title, "setting": asdict(setting)}
    return {**about, **bench(model, data)(setting)}


def matrices(net: nn.Module) -> dict[str, Tensor]:
    """Return the weights that are packed, by name: no embeddings, biases or norms."""
    return {
        f"{name}.{own}".lstrip("."): weight
        for name, module in net.named_modules()
        if isinstance(module, MATRICES)
        for own, weight in module.named_parameters(recurse=False)
        if weight.ndim >= 2
    }


def rules(net: nn.Module, rule: Any) -> dict[str, Any]:
    """Return what packs the matrices of a model by a rule, and nothing else."""
    return {**dict.fromkeys(matrices(net), rule), "*": None}


class Bench:
    """A trained model of a task. What its layers get is looked at once."""

    def __init__(self, task: Task, net: nn.Module) -> None:
        self._task, self._net = task, net

    @torch.no_grad()
    def __call__(self, setting: Setting) -> dict[str, Any]:
        """Return loss and accuracy on all held-out data, and entries and bytes."""
        numel = sum(each.numel() for each in matrices(self._net).values())
        read, packed = copy.deepcopy(self._net), 4 * numel
        if setting not in (FLOAT, PLAIN):
            if isinstance(setting, Calibrated):
                packed = self._calibrated(read, setting)
            elif setting.activations is not None:
                packed = multiplied(read, setting, setting.activations)
            else:
                packed = decoded(read, setting)
        state = self._net.state_dict().values()
        return {
            **evaluate(self._task, read.eval()),
            "parameters": sum(each.numel() for each in self._net.parameters()),
            "entries": numel,
            "packed_bytes": packed,
            "bytes": packed + sum(each.nbytes for each in state) - 4 * numel,
        }

    def _calibrated(self, read: nn.Module, setting: Calibrated) -> int:
        """Give a model the weights that are read after packing it, and return their bytes."""
        method, net = METHODS[setting.method], copy.deepcopy(self._net).eval()
        rule: Any = Affine(int(setting.bits), setting.block, method.fit)
        if method.allot:
            rule = self._budget(net, method, setting)
        how: dict[str, Any] = {}
        if method.rounding is not None:
            seen = self._look(net, sequential=True) if method.sequential else self._seen
            how = {"rounding": method.rounding, "prepare": method.prepare, "calibration": seen}
        report = weights.pack(net, rules(net, rule), **how)
        targets = matrices(read)
        for each in report.tensors:
            module, _, own = each.name.rpartition(".")
            targets[each.name].copy_(getattr(net.get_submodule(module), own))
        return sum(each.nbytes for each in report.tensors)

    def _batches(self, count: int) -> list[Any]:
        """Return batches of training data, in another order than training's."""
        return list(islice(self._task.batches(0, 1, SEED), count))

    @functools.cached_property
    def _seen(self) -> weights.Calibration:
        return self._look(self._net.eval())

    def _look(self, net: nn.Module, *, sequential: bool = False) -> weights.Calibration:
        with weights.Calibration(net, sequential=sequential) as seen:
            for inputs, _ in self._batches(BATCHES):
                net(inputs)
        return seen

    def _budget(self, net: nn.Module, method: Method, setting: Calibrated) -> Budget:
        """Return a budget of the bytes of a mean of two numbers of bits everywhere."""
        low = int(setting.bits)
        both = (self._bits_per_weight(low), self._bits_per_weight(low + (setting.bits > low)))
        few = self._batches(FEW)

        def loss() -> float:
            return sum(float(self._task.loss(net, batch)) for batch in few)

        use = loss if method.allot == "loss" else None
        return Budget(sum(both) / 2, loss=use, grid=Affine(4, setting.block))

    def _bits_per_weight(self, bits: int) -> float:
        """Return what so many bits everywhere take, and half a bit in all against rounding."""
        net = copy.deepcopy(self._net)
        tensors = weights.pack(net, rules(net, Affine(bits, BLOCK, "range"))).tensors
        numel = sum(int(np.prod(each.shape)) for each in tensors)
        return (8 * sum(each.nbytes for each in tensors) + 0.5) / numel


def decoded(net: nn.Module, setting: Nearest) -> int:
    """Give a model the weights that are read after packing, and return the bytes read for it."""
    nbytes, nested = 0, setting.nested
    grid = Affine(FIRST if nested else setting.bits, setting.block, setting.fit)
    for weight in matrices(net).values():
        packed = core.pack(weight.detach().numpy(), grid, more=(FURTHER,) if nested else ())
        if nested:
            packed = packed.keep(setting.bits)
        nbytes += packed.nbytes
        weight.copy_(torch.from_numpy(packed.unpack()))
    return nbytes


class FewRows(nn.Module):
    """A linear layer that gets so few rows at a time that it multiplies packed bytes."""

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, x: Tensor) -> Tensor:
        rows = x.reshape(-1, x.shape[-1])
        y = torch.cat([self.layer(part) for part in torch.split(rows, ROWS)])
        return y.view(*x.shape[:-1], -1)


def multiplied(net: nn.Module, setting: Nearest, activations: Activations) -> int:
    """Have a model's linear layers multiply from packed bytes; return those of all matrices."""
    report = weights.pack(net, rules(net, Affine(setting.bits, setting.block, setting.fit)))
    for parent in list(net.modules()):
        for name, child in list(parent.named_children()):
            if isinstance(child, weights.PackedLinear):
                child.activations = activations
                setattr(parent, name, FewRows(child))
    return sum(each.nbytes for each in report.tensors)
