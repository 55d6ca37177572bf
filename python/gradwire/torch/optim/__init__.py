"""Optimizers that `gradwire.torch.ddp.attach` tells what the codec has done already.

>>> optimizer = gradwire.torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
>>> codec = gradwire.dgc(ratio=0.001, momentum=0.9)
>>> handle = gradwire.torch.ddp.attach(model, codec, optimizer=optimizer)

Not attached, each of them is the optimizer of torch that has its name: in what it takes, bit for
bit in what it does, and in its checkpoints.
"""

from gradwire.torch.optim.adamw import AdamW
from gradwire.torch.optim.sgd import SGD

__all__ = ["SGD", "AdamW"]
