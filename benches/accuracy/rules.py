"""How a method makes a step out of the gradients of all ranks."""

from typing import Any, Protocol

import torch
from torch import Tensor, nn

from gradwire import Codec
from gradwire.torch.optim import SGD

from .averaging import Compressed, Dense
from .flat import Flat

Options = dict[str, Any]


class Rule(Protocol):
    """What a run asks of a method. Ranks are simulated one after the other.

    Attributes
    ----------
    nbytes : float
        Bytes that a rank sent in the last step.
    """

    nbytes: float

    def begin(self, learning_rate: float) -> None:
        """Begin a step."""

    def take(self, rank: int, gradients: Tensor) -> None:
        """Take the gradients of a rank, which the rule may overwrite."""

    def end(self) -> None:
        """Update the parameters."""


class ByOptimizer:
    """Average gradients, dense or with a codec, and give them to an optimizer of torch's kind."""

    def __init__(
        self,
        flat: Flat,
        ranks: int,
        codec: Codec | None,
        optimizer: str,
        options: Options,
    ) -> None:
        self._flat = flat
        self._averaging: Compressed | Dense
        if codec is None:
            self._averaging = Dense(flat, ranks)
        else:
            self._averaging = Compressed(flat, ranks, codec)
        self._average = torch.zeros_like(flat.gradients)
        corrected = codec is not None and codec.memory.corrects
        self._optimizer = self._make(optimizer, options, corrected=corrected)
        self.nbytes = 0.0

    def _make(self, name: str, options: Options, *, corrected: bool) -> torch.optim.Optimizer:
        groups = parts(self._flat, self._average)
        if name == "adamw":
            return torch.optim.AdamW(groups, lr=0.0, fused=True, **options)
        if not corrected:
            return torch.optim.SGD(groups, lr=0.0, **options)
        compressed, dense = groups
        return SGD(
            [
                {"params": [compressed], "corrected": True},
                {"params": [dense], "corrected": False},
            ],
            lr=0.0,
            **options,
        )

    def begin(self, learning_rate: float) -> None:
        """Begin a step."""
        for group in self._optimizer.param_groups:
            group["lr"] = learning_rate

    def take(self, rank: int, gradients: Tensor) -> None:
        """Take the gradients of a rank."""
        self._averaging.take(rank, gradients)

    def end(self) -> None:
        """Update the parameters."""
        self._averaging.average(self._average)
        self._optimizer.step()
        self.nbytes = self._averaging.nbytes


class ByUpdates:
    """Each rank sends the step that Adam would take with its own second moment, with no first.

    Parameters sent dense are stepped by torch's AdamW.
    """

    def __init__(
        self,
        flat: Flat,
        ranks: int,
        codec: Codec,
        options: Options,
        *,
        beta2: float = 0.999,
        eps: float = 1e-8,
    ) -> None:
        self._averaging = Compressed(flat, ranks, codec)
        self._average = torch.zeros_like(flat.gradients)
        self._compressed, dense = parts(flat, self._average)
        self._optimizer = torch.optim.AdamW([dense], lr=0.0, fused=True, **options)
        self._decay = self._optimizer.defaults["weight_decay"]
        self._second = torch.zeros(ranks, flat.cut)
        self._scratch = torch.zeros(flat.cut)
        self._beta2, self._eps, self._steps = beta2, eps, 0
        self._cut = flat.cut
        self._rate = 0.0
        self.nbytes = 0.0

    def begin(self, learning_rate: float) -> None:
        """Begin a step."""
        self._rate = learning_rate
        self._optimizer.param_groups[0]["lr"] = learning_rate
        self._steps += 1

    def take(self, rank: int, gradients: Tensor) -> None:
        """Take the gradients of a rank, whose compressed part becomes the step."""
        own, second = gradients[: self._cut], self._second[rank]
        second.mul_(self._beta2).addcmul_(own, own, value=1 - self._beta2)
        torch.mul(second, 1 / (1 - self._beta2**self._steps), out=self._scratch)
        self._scratch.sqrt_().add_(self._eps)
        own.mul_(self._rate).div_(self._scratch)
        self._averaging.take(rank, gradients)

    def end(self) -> None:
        """Update the parameters."""
        self._averaging.average(self._average)
        with torch.no_grad():
            self._compressed.mul_(1 - self._rate * self._decay).sub_(self._average[: self._cut])
        self._optimizer.step()
        self.nbytes = self._averaging.nbytes


def parts(flat: Flat, average: Tensor) -> list[nn.Parameter]:
    """Return the compressed and the dense parameters as two, whose gradient is the average."""
    found = []
    for begin, end in ((0, flat.cut), (flat.cut, flat.parameters.numel())):
        part = nn.Parameter(flat.parameters[begin:end])
        part.grad = average[begin:end]
        found.append(part)
    return found
