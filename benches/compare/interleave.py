"""Run several cases in interleaved rounds, with a copy at the start of each round."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from .contestant import Array
from .rounds import Spread, timed

WARM_UP = 2

Tick = Callable[[str], None]


@dataclass
class Timing:
    """The rounds of one case, in seconds and in copies of the same round."""

    seconds: Spread = field(default_factory=Spread)
    copies: Spread = field(default_factory=Spread)

    def record(self) -> dict[str, Any]:
        return {"seconds": self.seconds.record(), "copies": self.copies.record()}


def interleave(
    works: Mapping[str, Callable[[int], object]], copied: Array, rounds: int, tick: Tick
) -> tuple[Spread, dict[str, Timing]]:
    """Run every case once per round; return the times of the copy and of all cases.

    Each work is told the number of the round. ``copied`` is the tensor that the copy copies.
    """
    out = np.zeros_like(copied)
    copy, timings = Spread(), {name: Timing() for name in works}
    for turn in range(-WARM_UP, rounds):
        tick("copy")
        once, _ = timed(lambda: np.copyto(out, copied))
        if turn >= 0:
            copy.values.append(once)
        for name, work in works.items():
            tick(name)
            seconds, _ = timed(lambda work=work, turn=turn: work(turn))  # type: ignore[misc]
            if turn >= 0:
                timings[name].seconds.values.append(seconds)
                timings[name].copies.values.append(seconds / once)
    return copy, timings
