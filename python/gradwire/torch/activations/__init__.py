"""Activations in few bits: packed for the backward pass, or rounded during training.

>>> from gradwire.torch import activations
>>> handle = activations.attach(model, bits=4)
>>> loss(model(x), y).backward()
>>> print(handle.report())

Training with low-bit weights and activations:

>>> model.act = activations.PACT(bits=2)
>>> groups = activations.parameter_groups(model, weight_decay=5e-4)
>>> optimizer = torch.optim.SGD(groups, lr=0.1, momentum=0.9)

See ``docs/activations.md``; `gradwire.torch.weights.straight_through` rounds weights in training.
"""

from gradwire.torch.activations.attachment import PackedActivations, attach
from gradwire.torch.activations.pact import PACT, parameter_groups
from gradwire.torch.activations.report import ActivationReport, ModuleActivations

__all__ = [
    "PACT",
    "ActivationReport",
    "ModuleActivations",
    "PackedActivations",
    "attach",
    "parameter_groups",
]
