"""When fragments are exchanged, and what an outer step makes of their averages.

Douillard et al., "Streaming DiLoCo with overlapping communication", arXiv 2501.18512, 2025: the
layers of a model are divided into fragments, each of which has its own rounds (section 2.2), and a
fragment is applied some steps after it was sent (section 2.3).
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

import torch

from gradwire import _validate
from gradwire._validate import Check, Checked, Count, require

if TYPE_CHECKING:
    from gradwire._codec import Codec


@dataclass(frozen=True)
class Timetable(Checked):
    """When fragments are sent and applied, in inner steps counted from 1.

    Exchange n is of fragment ``n % fragments``. All of them are sent at equal distances in
    ``inner_steps`` steps, each applied ``delay`` steps later, before it is sent again.
    """

    inner_steps: Count
    fragments: int
    delay: int

    def __post_init__(self) -> None:
        super().__post_init__()
        _validate.integer("delay", self.delay, low=0, high=self.inner_steps - 1)
        require(
            self.fragments <= self.inner_steps,
            "{} fragments cannot be sent in {} inner steps, one at a time",
            *(self.fragments, self.inner_steps),
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
        enough = count <= len(layers)
        require(enough, "the model has {} layers, got {} fragments", len(layers), count)
        turns = {layer: index % count for index, layer in enumerate(layers)}
        return tuple(
            tuple(name for name in named if turns[_layer(name)] == index) for index in range(count)
        )
    groups = tuple(
        tuple(
            name
            for name in named
            if any(f"{name}.".startswith(f"{prefix}.") for prefix in prefixes)
        )
        for prefixes in fragments
    )
    for name in named:
        times = sum(name in group for group in groups)
        require(times == 1, "parameter {!r} is in {} fragments instead of one", name, times)
    require(all(groups), "a fragment has no parameters: {!r}", fragments)
    return groups


def _layer(name: str) -> str:
    """Return the layer of a parameter: up to the first number in its name, or its module."""
    numbered = re.match(r"(.*?\.)?\d+(?=\.|$)", name)
    return numbered[0] if numbered else name.rpartition(".")[0] or name


_Part = Annotated[float, Check(_validate.positive, below=1)]


@dataclass(frozen=True)
class OuterOptimizer(Checked):
    """SGD with momentum on averaged pseudo-gradients.

    Every operation is rounded separately, by IEEE 754, so sites with different processors get the
    same bits. With `carry`, a rank's progress since it sent a fragment is added to the new shared
    parameters and sent the next time; then there is no mixing. Fields are called as the arguments
    of `gradwire.torch.diloco.DiLoCo`.
    """

    outer_lr: Annotated[float, Check(_validate.positive, above=0)]
    outer_momentum: _Part
    nesterov: bool
    mixing: _Part = 0.0  # the share of a rank's own parameters that remains
    carry: bool = False

    def step(self, shared: torch.Tensor, velocity: torch.Tensor | None, mean: torch.Tensor) -> None:
        """Update shared parameters by the mean pseudo-gradient of the ranks."""
        mean = mean.to(shared.dtype)
        if velocity is not None:
            velocity.mul_(self.outer_momentum).add_(mean)
            mean = mean + velocity * self.outer_momentum if self.nesterov else velocity
        shared.sub_(mean * self.outer_lr)

    def place(
        self, parameter: torch.Tensor, shared: torch.Tensor, sent: torch.Tensor | None
    ) -> None:
        """Combine a rank's progress since `sent` with the new shared parameters."""
        if sent is not None:
            parameter.copy_(shared + (parameter.to(shared.dtype) - sent.to(shared.dtype)))
        elif self.mixing:
            parameter.lerp_(shared.to(parameter.dtype), 1.0 - self.mixing)
        else:
            parameter.copy_(shared)

    def check(self, codec: "Codec") -> None:
        """Raise a ValueError for a mixing with which training diverges.

        The share of its own parameters that a rank keeps is part of its next pseudo-gradient again.
        If all ranks moved by p, of which the outer step makes u, the next one begins with mixing *
        (p - lr * u), where u has the outer momentum. The roots of that linear recursion are inside
        the unit circle up to the limit below. With a residual, the kept share is added once for
        each round in which an entry has waited, so that no such limit exists.
        """
        share, lr, momentum = self.mixing, self.outer_lr, self.outer_momentum
        if share == 0.0:
            return
        require(
            not codec.memory.keeps,
            "mixing={:g} needs a codec without a residual, which would send again what a rank "
            "keeps; got {!r}: leave mixing= out, and a rank's later training is kept and sent once",
            *(share, codec.memory),
        )
        twice = 2.0 * momentum if self.nesterov else 0.0
        most = (1.0 + momentum) * (1.0 + share) / (share * (1.0 + twice))
        require(
            lr < most,
            "mixing={:g} does not work with outer_lr={:g} and outer_momentum={:g}: what a rank "
            "keeps of its own parameters is sent once more as progress in the other direction, and "
            "training diverges at {:.3g} or above; leave mixing= out",
            *(share, lr, momentum, most),
        )
