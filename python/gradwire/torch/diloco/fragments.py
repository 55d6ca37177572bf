"""Which parameters are exchanged together, and at which inner steps.

Douillard et al., "Streaming DiLoCo with overlapping communication", arXiv 2501.18512, 2025: the
layers of a model are divided into fragments, each of which has its own rounds (section 2.2), and a
fragment is applied some steps after it was sent (section 2.3).
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from gradwire import _validate


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
        """Return the inner step after which an exchange starts."""
        turn, fragment = divmod(number, self.fragments)
        return turn * self.inner_steps + (fragment + 1) * self.inner_steps // self.fragments

    def applied_at(self, number: int) -> int:
        """Return the inner step after which its result is applied."""
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
