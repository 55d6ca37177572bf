"""A method with parts that can be exchanged, and oracles that no real program has."""

from dataclasses import dataclass, fields
from typing import Any

import torch
from torch import Tensor

from benches.accuracy.averaging import Averaging, Dense
from benches.accuracy.flat import Flat
from benches.accuracy.rules import encoding, parts
from gradwire import Codec

DECAY = 0.01
EPS = 1e-8


@dataclass(frozen=True)
class Variant:
    """What is encoded, with which moments, and what becomes of the average.

    As it is by default, it trains like `gradwire.memory.AdamCorrection` with gradwire's AdamW.

    Attributes
    ----------
    codec : Codec, optional
        None sends everything.
    sent : {"updates", "steps", "gradients", "signs"}
        Adam's step times the learning rate; Adam's step, to which the receiver applies the learning
        rate; the gradient, of which the receiver makes Adam's step; Lion's sign times the learning
        rate.
    beta1, beta2 : float
        Of the moments, where the steps are made. For "signs" those of Lion.
    second : {"own", "all", "received"}
        What v sees: gradients of the rank; an oracle's average over all ranks of the true
        gradients; for "gradients" also what was decoded.
    share : int
        Average v over the ranks once in so many steps; 0 for never.
    clip : float
        Largest norm of a rank's whole gradient; 0 for none.
    clip_average : float
        Largest norm of what was averaged; 0 for none.
    dense : tuple of str
        Parameters sent dense whatever their size, by a part of their names.
    """

    codec: Codec | None = None
    sent: str = "updates"
    beta1: float = 0.0
    beta2: float = 0.999
    second: str = "own"
    share: int = 0
    clip: float = 0.0
    clip_average: float = 0.0
    dense: tuple[str, ...] = ()

    def rule(self, flat: Flat, ranks: int, steps: int) -> "VariantRule":
        """Return the rule for a run of any number of steps."""
        return VariantRule(self, flat, ranks)

    def config(self) -> dict[str, Any]:
        """Return what determines the variant, as plain data."""
        found = {each.name: getattr(self, each.name) for each in fields(self)}
        found["codec"] = None if self.codec is None else self.codec.get_config()
        found["dense"] = list(self.dense)
        return found


class VariantRule:
    """Collects the gradients of all ranks, then makes the step."""

    def __init__(self, variant: Variant, flat: Flat, ranks: int) -> None:
        self._variant, self._cut = variant, flat.cut
        self._averaging: Averaging = (
            Dense(flat, ranks) if variant.codec is None else encoding(flat, ranks, variant.codec)
        )
        self._given = torch.zeros(ranks, flat.gradients.numel())
        self._average = torch.zeros_like(flat.gradients)
        self._compressed, dense = parts(flat, self._average)
        self._optimizer = torch.optim.AdamW([dense], lr=0.0, weight_decay=DECAY, fused=True)
        kept = ranks if variant.second == "own" and variant.sent != "gradients" else 1
        self._second = torch.zeros(kept, flat.cut)
        self._first = torch.zeros(ranks if variant.sent != "gradients" else 1, flat.cut)
        self._scratch = torch.zeros(flat.cut)
        self._rate, self._step = 0.0, 0
        self.nbytes = 0.0

    def begin(self, learning_rate: float) -> None:
        """Begin a step."""
        self._rate = learning_rate
        self._optimizer.param_groups[0]["lr"] = learning_rate
        self._step += 1

    def take(self, rank: int, gradients: Tensor) -> None:
        """Take the gradients of a rank."""
        clip(gradients, self._variant.clip)
        self._given[rank].copy_(gradients)

    def end(self) -> None:
        """Update the parameters."""
        variant, cut = self._variant, self._cut
        if variant.second == "all":
            self._see(0, self._given[:, :cut].mean(0))
        for rank, gradients in enumerate(self._given):
            own = gradients[:cut]
            if variant.sent == "signs":
                self._to_sign(rank, own)
            elif variant.sent != "gradients":
                if variant.second == "own":
                    self._see(rank, own)
                self._to_step(rank, rank if variant.second == "own" else 0, own)
            if variant.sent in ("updates", "signs"):
                own.mul_(self._rate)
            self._averaging.take(rank, gradients)
        self._averaging.average(self._average)
        clip(self._average, variant.clip_average)
        received = self._average[:cut]
        if variant.sent == "gradients":
            if variant.second == "received":
                self._see(0, received)
            self._to_step(0, 0, received)
        if variant.sent in ("gradients", "steps"):
            received.mul_(self._rate)
        with torch.no_grad():
            self._compressed.mul_(1 - self._rate * DECAY).sub_(received)
        self._optimizer.step()
        if variant.share and self._step % variant.share == 0:
            self._second.copy_(self._second.mean(0, keepdim=True).expand_as(self._second))
        self.nbytes = self._averaging.nbytes

    def _see(self, row: int, gradients: Tensor) -> None:
        beta2 = self._variant.beta2
        self._second[row].mul_(beta2).addcmul_(gradients, gradients, value=1 - beta2)

    def _to_step(self, row: int, second: int, gradients: Tensor) -> None:
        """Make Adam's step of a gradient, in place."""
        beta1, beta2 = self._variant.beta1, self._variant.beta2
        if beta1:
            first = self._first[row].lerp_(gradients, 1 - beta1)
            torch.mul(first, 1 / (1 - beta1**self._step), out=gradients)
        torch.mul(self._second[second], 1 / (1 - beta2**self._step), out=self._scratch)
        gradients.div_(self._scratch.sqrt_().add_(EPS))

    def _to_sign(self, row: int, gradients: Tensor) -> None:
        """Make Lion's step of a gradient, in place."""
        first = self._first[row]
        torch.lerp(first, gradients, 1 - self._variant.beta1, out=self._scratch)
        first.lerp_(gradients, 1 - self._variant.beta2)
        torch.sign(self._scratch, out=gradients)


def clip(vector: Tensor, largest: float) -> None:
    """Scale a vector down to a norm, as torch's clip_grad_norm_ does; 0 leaves it."""
    if largest:
        vector.mul_(torch.clamp(largest / (vector.norm() + 1e-6), max=1.0))
