"""A small network under an optimizer that gradwire has distributed, or under Horovod's own."""

import contextlib
import warnings

import horovod.torch as hvd
import torch
from torch import nn

import gradwire.torch.horovod as gh
from tests.distributed.scenarios.common import batch, fingerprint, network

SUITED = "suited"
"""No codec: that which suits the optimizer. None stands for Horovod's own optimizer."""


def sgd(model, **options):
    return torch.optim.SGD(model.parameters(), **{"lr": 0.05, **options})


class Run:
    """Either of them."""

    def __init__(self, codec=None, kind=torch.optim.SGD, *, model=None, wrap=None, **options):
        warnings.simplefilter("ignore", gh.PairingWarning)
        self.model = network() if model is None else model
        given = kind(self.model.parameters(), **{"lr": 0.05, **options})
        made, arguments = hvd.DistributedOptimizer, wrap or {}
        if codec == SUITED:
            made = gh.DistributedOptimizer
        elif codec is not None:
            made, arguments = gh.DistributedOptimizer, {"codec": codec, **arguments}
        self.optimizer = made(given, list(self.model.named_parameters()), **arguments)
        self.handle = getattr(self.optimizer, "handle", None)

    def backward(self, rank, step, scaler=None, factor=1.0):
        inputs, targets = batch(rank, step)
        loss = factor * nn.functional.mse_loss(self.model(inputs), targets)
        (loss if scaler is None else scaler.scale(loss)).backward()

    def train(self, rank, steps, passes=1):
        for step in steps:
            self.optimizer.zero_grad()
            for each in range(passes):
                self.backward(rank, 1000 * each + step)
            self.optimizer.step()
        return self

    def given(self, gradients):
        """Make a step in which each of these tensors is the gradient of a parameter."""
        self.optimizer.zero_grad()
        self.model(gradients).backward()
        self.optimizer.step()

    @contextlib.contextmanager
    def averaged(self):
        """Average the gradients, and apply what they are after the block."""
        self.optimizer.synchronize()
        yield
        with self.optimizer.skip_synchronize():
            self.optimizer.step()

    def end(self):
        if self.handle is not None:
            self.handle.detach()
        return fingerprint(self.model)


def apart(one, other):
    """Return the largest difference of two runs' parameters."""
    pairs = zip(one.model.parameters(), other.model.parameters(), strict=True)
    return max((a - b).abs().max().item() for a, b in pairs)
