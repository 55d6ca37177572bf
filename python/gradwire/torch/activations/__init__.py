"""Activations in few bits: kept so for backward, or rounded in training.

>>> from gradwire.torch import activations
>>> handle = activations.attach(model, bits=4)
>>> loss(model(x), y).backward()
>>> print(handle.report())

Weights and activations of few bits, learned:

>>> model.act = activations.PACT(bits=2)
>>> groups = activations.parameter_groups(model, weight_decay=5e-4)
>>> optimizer = torch.optim.SGD(groups, lr=0.1, momentum=0.9)

See ``docs/activations.md``; `gradwire.torch.weights.straight_through` rounds weights in training.
"""

from gradwire.torch.activations.attachment import PackedActivations, attach
from gradwire.torch.activations.kurtosis import KurtosisPenalty
from gradwire.torch.activations.pact import PACT, parameter_groups
from gradwire.torch.activations.report import ActivationReport, ModuleActivations

__all__ = [
    "PACT",
    "ActivationReport",
    "KurtosisPenalty",
    "ModuleActivations",
    "PackedActivations",
    "attach",
    "parameter_groups",
]
