"""Training that goes on from trained weights with weights and activations of few bits."""

import copy
from collections.abc import Callable, Iterator
from itertools import islice
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from benches.accuracy.run import Task, evaluate
from benches.accuracy.tasks.fashion import Fashion
from benches.harness.recipes import recipe_for, scheduled
from benches.weights.packing import matrices, sizes
from gradwire.quantize import Affine
from gradwire.torch import activations, weights

from .plan import ABSMAX, ALONE, ANY, ANY_BITS, CONTINUED, SAWB_PACT, SAWB_PLUS, STEPPED, Setting

SEED = 4
"""Of the order of batches."""
DECAY = 0.01
CLIP = 2.0
"""Where clips of activations start on images: of 1, 2 and 4 the best on 10,000 of the training."""
ENDS = ("stem.0.weight", "head.weight")
"""The first and the last layer, which keep 8 bits, as in the papers."""

Rules = dict[str, Affine | None]
Found = dict[str, Any]


def train(task: Task, net: nn.Module, setting: Setting) -> Found:
    """Train on, and return loss and accuracy of the packed model; of several bits, at each."""
    return TRAININGS[setting.method](task, copy.deepcopy(net), int(setting.bits))


def _continued(task: Task, net: nn.Module, _: int) -> Found:
    _fit(task, net, lambda batch: task.loss(net, batch))
    return {**evaluate(task, net), **sizes(net)}


def _largest(task: Task, net: nn.Module, bits: int) -> Found:
    return _two_sided(task, net, Affine(bits, None, "zero"), lambda: Largest(bits))


def _pact(plus: bool) -> Callable[[Task, nn.Module, int], Found]:
    def trained(task: Task, net: nn.Module, bits: int) -> Found:
        affine = Affine(bits, None, "sawb")
        return _two_sided(task, net, affine, lambda: activations.PACT(bits, CLIP, plus))

    return trained


def _two_sided(
    task: Task, net: nn.Module, affine: Affine, activation: Callable[[], nn.Module]
) -> Found:
    """Train with weights of a grid, and with something in place of each ReLU."""
    for parent in list(net.modules()):
        for name, child in list(parent.named_children()):
            if isinstance(child, nn.ReLU):
                setattr(parent, name, activation())
    return _rounded(task, net, {**dict.fromkeys(ENDS, Affine(8, 64)), **_all(net, affine)})


def _alone(task: Task, net: nn.Module, bits: int) -> Found:
    return _rounded(task, net, _all(net, Affine(bits, 64, "range")))


def _any(task: Task, net: nn.Module, _: int) -> Found:
    """Train one network that is read at several bits, whose codes are the first of the most.

    What BatchNorm knows of its inputs is kept for each number of bits.
    """
    rules = {bits: _all(net, Affine(bits, 64, "range")) for bits in ANY_BITS}

    def loss(batch: Any) -> Tensor:
        losses = []
        for each in rules.values():
            with weights.straight_through(net, each):
                losses.append(task.loss(net, batch))
        return torch.stack(losses).sum()

    _fit(task, net, loss)
    read = {}
    for bits, each in rules.items():
        with weights.straight_through(net, each):
            _observe(task, net)
        read[bits] = _read(task, net, each)
    return {**read[ANY_BITS[0]], "read": {str(bits): each for bits, each in read.items()}}


@torch.no_grad()
def _observe(task: Task, net: nn.Module) -> None:
    """Have BatchNorm average over some batches what it normalizes by."""
    for each in net.train().modules():
        if isinstance(each, nn.BatchNorm2d):
            each.reset_running_stats()
            each.momentum = None
    for images, _ in islice(task.batches(0, 1, SEED), OBSERVED):
        net(images)


def _stepped(task: Task, net: nn.Module, bits: int) -> Found:
    return _rounded(task, Stepped(net, bits), _all(net, Affine(bits, 64)))


TRAININGS = {
    CONTINUED: _continued,
    ABSMAX: _largest,
    SAWB_PACT: _pact(plus=False),
    SAWB_PLUS: _pact(plus=True),
    ALONE: _alone,
    ANY: _any,
    STEPPED: _stepped,
}
OBSERVED = 50
"""Batches from which BatchNorm learns what it normalizes by."""
IMAGES, TEXT = (1400, 0.004), (800, 0.001)
"""Steps and the highest learning rate; on images that of 0.002, 0.004 and 0.01, chosen alike."""


def _all(net: nn.Module, affine: Affine) -> Rules:
    return {**{f"*{name}": affine for name in matrices(net)}, "*": None}


def _rounded(task: Task, net: nn.Module, rules: Rules) -> Found:
    with weights.straight_through(net, rules):
        _fit(task, net, lambda batch: task.loss(net, batch))
    return _read(task, net, rules)


def _read(task: Task, net: nn.Module, rules: Rules) -> Found:
    """Return what a packed copy has."""
    packed = copy.deepcopy(net).eval()
    report = weights.pack(packed, rules)
    clips = [
        float(each.clip.detach()) for each in net.modules() if isinstance(each, activations.PACT)
    ]
    return {
        **evaluate(task, packed),
        **sizes(net, sum(each.nbytes for each in report.tensors)),
        **({"clips": clips} if clips else {}),
    }


def _fit(task: Task, net: nn.Module, loss: Callable[[Any], Tensor]) -> None:
    steps, rate = IMAGES if isinstance(task, Fashion) else TEXT
    groups = activations.parameter_groups(net.train(), DECAY)
    optimizer = recipe_for("adamw", None).optimizer(groups, rate)  # type: ignore[arg-type]
    schedule = scheduled(optimizer, steps)
    batches: Iterator[Any] = task.batches(0, 1, SEED)
    for _ in range(steps):
        optimizer.zero_grad()
        loss(next(batches)).backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        schedule.step()


class Largest(nn.Module):
    """A ReLU rounded on a range up to the largest entry, on average over batches."""

    top: Tensor

    def __init__(self, bits: int) -> None:
        super().__init__()
        self.steps = 2**bits - 1
        self.register_buffer("top", torch.zeros(()))

    def forward(self, x: Tensor) -> Tensor:
        y = functional.relu(x)
        if self.training:
            most = y.detach().max()
            self.top.copy_(torch.where(self.top > 0, torch.lerp(self.top, most, 0.1), most))
        step = self.top / self.steps
        rounded = (y.detach() / step).round().clamp(max=self.steps) * step
        out: Tensor = rounded + y - y.detach()
        return out


class Stepped(nn.Module):
    """An LSTM step by step, with inputs and hidden states of few bits."""

    def __init__(self, net: Any, bits: int) -> None:
        super().__init__()
        self.character, self.cells, self.head = net.character, net.cells, net.head
        self.given = activations.PACT(bits, 4.0, two_sided=True)
        self.hidden = activations.PACT(bits, 1.0, two_sided=True)

    def forward(self, text: Tensor) -> Tensor:
        cells = self.cells
        of_hidden = cells.weight_hh_l0.t()
        gates = functional.linear(
            self.given(self.character(text)),
            cells.weight_ih_l0,
            cells.bias_ih_l0 + cells.bias_hh_l0,
        )
        h = c = gates.new_zeros(len(text), cells.hidden_size)
        found = []
        for each in gates.unbind(1):
            i, f, g, o = torch.addmm(each, h, of_hidden).chunk(4, 1)
            c = f.sigmoid() * c + i.sigmoid() * g.tanh()
            h = self.hidden(o.sigmoid() * c.tanh())
            found.append(h)
        logits: Tensor = self.head(torch.stack(found, 1))
        return logits
