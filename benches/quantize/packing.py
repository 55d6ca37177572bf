"""A trained model packed by a method: how it reads, and how far the outputs of its layers are."""

import copy
import time
from itertools import islice
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from benches.accuracy.run import Task, evaluate
from benches.weights.packing import matrices, sizes
from gradwire.quantize import Affine
from gradwire.torch import weights
from gradwire.weights import Budget, Gram

from . import training
from .plan import BLOCK, FLOAT, METHODS, SEEDS, Method, Setting

BATCHES, FEW = 32, 8
"""Of a calibration, and of these those that a budget's loss is taken of."""
DAMP = 0.01
"""Of the solvers, whose objective has it too."""

Found = dict[str, Any]


class Bench:
    """A trained model of a task. What its layers get is looked at once for each seed."""

    def __init__(self, task: Task, net: nn.Module) -> None:
        self._task, self._net = task, net
        self._seen: dict[int, weights.Calibration] = {}

    def __call__(self, setting: Setting) -> Found:
        """Return what is recorded of a setting."""
        if setting == FLOAT:
            return {**evaluate(self._task, self._net.eval()), **sizes(self._net)}
        if setting.method not in METHODS:
            return training.train(self._task, self._net, setting)
        with torch.no_grad():
            return self._packed(setting, METHODS[setting.method])

    def batches(self, seed: int) -> list[Any]:
        """Return the batches of a calibration: training data, in another order than training's."""
        return list(islice(self._task.batches(0, 1, seed), BATCHES))

    def seen(self, seed: int) -> weights.Calibration:
        """Return what the layers get of a calibration's batches."""
        if seed not in self._seen:
            self._seen[seed] = self._calibrated(self._net.eval(), seed)
        return self._seen[seed]

    def _calibrated(
        self, net: nn.Module, seed: int, *, sequential: bool = False
    ) -> weights.Calibration:
        with weights.Calibration(net, sequential=sequential) as seen:
            for inputs, _ in self.batches(seed):
                net(inputs)
        return seen

    def _packed(self, setting: Setting, method: Method) -> Found:
        net = copy.deepcopy(self._net).eval()
        names = list(matrices(net))
        grid = Affine(int(setting.bits), setting.block, method.fit)
        rule = self._budget(net, method, setting) if method.allot else grid
        how: dict[str, Any] = {}
        if method.rounding is not None:
            how = {"rounding": method.rounding, "prepare": method.prepare}
            how["calibration"] = (
                self._calibrated(net, setting.seed, sequential=True)
                if method.sequential
                else self.seen(setting.seed)
            )
        began = time.perf_counter()
        report = weights.pack(net, {**dict.fromkeys(names, rule), "*": None}, **how)
        seconds = time.perf_counter() - began
        read = copy.deepcopy(self._net)
        layers = {}
        seen = self.seen(setting.seed or SEEDS[0])
        for row in report.tensors:
            before = matrices(read)[row.name]
            module, _, own = row.name.rpartition(".")
            after = getattr(net.get_submodule(module), own).detach()
            if row.name in seen:
                layers[row.name] = [row.bits, *errors(before, after, seen[row.name])]
            before.copy_(after)
        return {
            **evaluate(self._task, read.eval()),
            **sizes(self._net, sum(each.nbytes for each in report.tensors)),
            "pack_seconds": round(seconds, 3),
            "layers": layers,
        }

    def _budget(self, net: nn.Module, method: Method, setting: Setting) -> Budget:
        """Return a budget of the bytes of a mean of two numbers of bits everywhere."""
        low = int(setting.bits)
        high = low + (setting.bits > low)
        mean = (self._bits_per_weight(low) + self._bits_per_weight(high)) / 2
        few = self.batches(setting.seed)[:FEW]

        def loss() -> float:
            return sum(float(self._task.loss(net, batch)) for batch in few)

        grid = Affine(4, setting.block)
        return Budget(mean, loss=loss if method.allot == "loss" else None, grid=grid)

    def _bits_per_weight(self, bits: int) -> float:
        """Return what so many bits everywhere take, and half a bit in all against rounding."""
        net = copy.deepcopy(self._net)
        rules = {**dict.fromkeys(matrices(net), Affine(bits, BLOCK, "range")), "*": None}
        tensors = weights.pack(net, rules).tensors
        numel = sum(int(np.prod(each.shape)) for each in tensors)
        return (8 * sum(each.nbytes for each in tensors) + 0.5) / numel


def errors(before: Tensor, after: Tensor, gram: Gram) -> tuple[float, float]:
    """Return the squared error of a layer's outputs, and what solvers minimise, as parts of these.

    Both are in parts of the squared outputs, of which the second also counts the damping.
    """
    rows = before.detach().flatten(1).double().numpy()
    change = after.detach().flatten(1).double().numpy() - rows
    lost = damped = norm = 0.0
    for part, own, matrix in zip(*_groups(change, rows, gram.matrix), strict=True):
        lost += _form(part, matrix)
        norm += _form(own, matrix)
        damped += DAMP * float(np.trace(matrix)) / len(matrix) * float(np.square(part).sum())
    return float(f"{lost / norm:.6g}"), float(f"{(lost + damped) / norm:.10g}")


def _groups(
    change: NDArray[np.float64], rows: NDArray[np.float64], matrix: NDArray[np.float64]
) -> tuple[list[NDArray[np.float64]], ...]:
    every = [matrix] if matrix.ndim == 2 else list(matrix)
    return np.split(change, len(every)), np.split(rows, len(every)), every


def _form(rows: NDArray[np.float64], matrix: NDArray[np.float64]) -> float:
    return float(np.einsum("ij,ij->", rows @ matrix, rows))
