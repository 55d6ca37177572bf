"""When fragments are exchanged, and what an outer step makes of their averages.

Douillard et al., "Streaming DiLoCo with overlapping communication", arXiv 2501.18512, 2025: the
layers of a model are divided into fragments, each of which has its own rounds (section 2.2), and a
fragment is applied some steps after it was sent (section 2.3).
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from gradwire import _validate

if TYPE_CHECKING:
    from gradwire._codec import Codec


@dataclass(frozen=True, slots=True)
class Timetable:
    """When fragments are sent and applied, in inner steps counted from 1.

    Exchange n is of fragment ``n % fragments``. All of them are sent at equal distances in
    ``inner_steps`` steps, each applied ``delay`` steps later, before it is sent again.
    """

    inner_steps: int
    fragments: int
    delay: int

    def __post_init__(self) -> None:
        steps = _validate.integer("inner_steps", self.inner_steps, low=1)
        _validate.integer("delay", self.delay, low=0, high=steps - 1)
        if self.fragments > steps:
            raise ValueError(
                f"{self.fragments} fragments cannot be sent in {steps} inner steps, one at a time"
            )

    def sent_at(self, number: int) -> int:
        turn, fragment = divmod(number, self.fragments)
        return turn * self.inner_steps + (fragment + 1) * self.inner_steps // self.fragments

    def applied_at(self, number: int) -> int:
        return self.sent_at(number) + self.delay


def divide(
    named: Mapping[str, Any], fragments: int | Sequence[Sequence[str]]
) -> tuple[tuple[str, ...], ...]:
    """Divide parameters, named in the order of the model, into fragments.

    If ``fragments`` is a number, layer i is in fragment ``i % fragments``, the strided pattern of
    the paper. Otherwise it lists the parameter names of each fragment, or prefixes of names that
    end before a dot. Raises a ValueError if there are more fragments than layers, or a
    parameter is in none or in several of them.
    """
    if isinstance(fragments, int):
        count = _validate.integer("fragments", fragments, low=1)
        layers = list(dict.fromkeys(map(_layer, named)))
        if count > len(layers):
            raise ValueError(f"the model has {len(layers)} layers, got {count} fragments")
        turns = {layer: index % count for index, layer in enumerate(layers)}
        return tuple(
            tuple(name for name in named if turns[_layer(name)] == index) for index in range(count)
        )
    found = tuple(
        tuple(name for name in named if any(f"{name}.".startswith(f"{each}.") for each in group))
        for group in fragments
    )
    for name in named:
        times = sum(name in group for group in found)
        if times != 1:
            raise ValueError(f"parameter {name!r} is in {times} fragments instead of one")
    if not all(found):
        raise ValueError(f"a fragment has no parameters: {fragments!r}")
    return found


def _layer(name: str) -> str:
    """Return the layer of a parameter: up to the first number in its name, or its module."""
    numbered = re.match(r"(.*?\.)?\d+(?=\.|$)", name)
    return numbered[0] if numbered else name.rpartition(".")[0] or name


@dataclass(frozen=True, slots=True)
class OuterOptimizer:
    """SGD with momentum on averaged pseudo-gradients.

    Every operation is rounded separately, by IEEE 754, so sites with different processors get the
    same bits. With `carry`, a rank's progress since it sent a fragment is added to the new shared
    parameters and sent the next time; then there is no mixing.
    """

    lr: float
    momentum: float
    nesterov: bool
    mixing: float = 0.0  # the share of a rank's own parameters that remains
    carry: bool = False

    @classmethod
    def given(
        cls, lr: float, momentum: float, nesterov: bool, mixing: float | None, delay: int
    ) -> "OuterOptimizer":
        """Check the arguments of `gradwire.torch.diloco.DiLoCo`, and return the optimizer."""
        if _validate.positive("outer_lr", lr) == 0.0:
            raise ValueError("outer_lr must be above 0: no parameter would be trained")
        return cls(
            float(lr),
            _share("outer_momentum", momentum),
            nesterov,
            0.0 if mixing is None else _share("mixing", mixing),
            carry=mixing is None and delay > 0,
        )

    def step(self, shared: torch.Tensor, velocity: torch.Tensor | None, mean: torch.Tensor) -> None:
        """Update shared parameters by the mean pseudo-gradient of the ranks."""
        mean = mean.to(shared.dtype)
        if velocity is not None:
            velocity.mul_(self.momentum).add_(mean)
            mean = mean + velocity * self.momentum if self.nesterov else velocity
        shared.sub_(mean * self.lr)

    def place(self, own: torch.Tensor, shared: torch.Tensor, sent: torch.Tensor | None) -> None:
        """Combine a rank's progress since `sent` with the new shared parameters."""
        if sent is not None:
            own.copy_(shared + (own.to(shared.dtype) - sent.to(shared.dtype)))
        elif self.mixing:
            own.lerp_(shared.to(own.dtype), 1.0 - self.mixing)
        else:
            own.copy_(shared)

    def check(self, codec: "Codec") -> None:
        """Raise a ValueError for a mixing with which training diverges.

        The share of its own parameters that a rank keeps is part of its next pseudo-gradient again.
        If all ranks moved by p, of which the outer step makes u, the next one begins with mixing *
        (p - lr * u), where u has the outer momentum. The roots of that linear recursion are inside
        the unit circle up to the limit below. With a residual, the kept share is added once for
        each round in which an entry has waited, so that no such limit exists.
        """
        kept = self.mixing
        if kept == 0.0:
            return
        if codec.memory.keeps:
            raise ValueError(
                f"mixing={kept:g} needs a codec without a residual, which would send again what a "
                f"rank keeps; got {codec.memory!r}: leave mixing= out, and a rank's later training "
                "is kept and sent once"
            )
        twice = 2.0 * self.momentum if self.nesterov else 0.0
        most = (1.0 + self.momentum) * (1.0 + kept) / (kept * (1.0 + twice))
        if self.lr >= most:
            raise ValueError(
                f"mixing={kept:g} does not work with outer_lr={self.lr:g} and "
                f"outer_momentum={self.momentum:g}: what a rank keeps of its own parameters is "
                "sent once more as progress in the other direction, and training diverges at "
                f"{most:.3g} or above; leave mixing= out"
            )


def _share(name: str, value: float) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < 1:
        raise ValueError(f"{name} must be a number from 0 to below 1, got {value!r}")
    return float(value)
