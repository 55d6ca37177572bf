"""Training for few bits: activations rounded with a learned clip, and a penalty on outliers.

>>> from gradwire.torch import activations
>>> model.act = activations.PACT(bits=2)
>>> groups = activations.parameter_groups(model, weight_decay=5e-4)
>>> optimizer = torch.optim.SGD(groups, lr=0.1, momentum=0.9)

See ``docs/activations.md``; `gradwire.torch.weights.straight_through` rounds weights in training.
"""

from gradwire.torch.activations.kurtosis import KurtosisPenalty
from gradwire.torch.activations.pact import PACT, parameter_groups

__all__ = ["PACT", "KurtosisPenalty", "parameter_groups"]
