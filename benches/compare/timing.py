"""Interleaved rounds: every contestant, and a copy, works once per round, in turning order.

Interleaving makes a disturbance of the machine affect all contestants alike; the ratio to the copy
of the same round is comparable between machines.
"""

import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch

import gradwire

Tick = Callable[[str], None]
Clock = Callable[[Callable[[], Any], Callable[[], object]], tuple[float, Any]]

SLOW, SLOW_ROUNDS = 0.08, 3
"""Seconds from which work takes part in fewer rounds, and in how many. As many show whether it is
ever faster: the first steps of a large state are not, as they take new memory."""


@dataclass
class Timing:
    """The rounds of one contestant, in seconds and in copies of the same round."""

    seconds: list[float] = field(default_factory=list)
    copies: list[float] = field(default_factory=list)

    def add(self, seconds: float, copy: float) -> None:
        self.seconds.append(seconds)
        self.copies.append(seconds / copy)

    def record(self) -> dict[str, Any]:
        return {
            "seconds": _short(statistics.median(self.seconds)),
            "least": _short(min(self.seconds)),
            "most": _short(max(self.seconds)),
            "copies": _short(statistics.median(self.copies)),
            "rounds": len(self.seconds),
        }


def _short(value: float) -> float:
    return float(f"{value:.5g}")  # what clocks can resolve


def interleave(
    works: Mapping[str, Callable[[int], Any]],
    copy: Callable[[], object],
    rounds: int,
    tick: Tick,
    *,
    warm_up: int,
    clock: Clock,
    before: Mapping[str, Callable[[int], object]] | None = None,
    after: Mapping[str, Callable[[int, Any, float], object]] | None = None,
) -> tuple[Timing, dict[str, Timing]]:
    """Run everyone once per round; return the times of the copy and of all works.

    Each work is told the number of the round. ``before`` has what some of them need first, outside
    the time; ``after`` gets what the work gave and the seconds of the copy. ``clock`` returns the
    seconds that a call takes after another one, and what it gave.
    """
    copies, timings = Timing(), {name: Timing() for name in works}
    names, slow = list(works), set(works)
    for turn in range(-warm_up, rounds):
        tick("copy")
        once, _ = clock(copy, _nothing)
        if turn >= 0:
            copies.add(once, once)
        at = turn % len(names) if names else 0
        for name in (*names[at:], *names[:at]):
            if name in slow and turn + warm_up >= SLOW_ROUNDS and not 0 <= turn < SLOW_ROUNDS:
                continue
            tick(name)
            ready = before[name] if before and name in before else _nothing
            seconds, answer = clock(partial(works[name], turn), partial(ready, turn))
            if seconds <= SLOW:
                slow.discard(name)
            if turn >= 0:
                timings[name].add(seconds, once)
                if after and name in after:
                    after[name](turn, answer, once)
            del answer  # the memory of one is free for the next
    return copies, timings


def in_turn(act: Callable[[Any], Any], given: Sequence[Any]) -> Callable[[int], Any]:
    """Return what acts in every round on the next of some things that take turns."""
    return lambda turn: act(given[turn % len(given)])


def timed(
    work: Callable[[], Any], before: Callable[[], object], repeats: int = 1
) -> tuple[float, Any]:
    """Return the seconds of one call, the median of the repeats, and what the last one gave."""
    seconds, answer = [], None
    for _ in range(repeats):
        before()
        answer = None
        _finish()
        began = time.perf_counter()
        answer = work()
        _finish()
        seconds.append(time.perf_counter() - began)
    return statistics.median(seconds), answer


@contextmanager
def one_thread() -> Iterator[None]:
    """Have torch and gradwire take one thread each within the block."""
    threads = torch.get_num_threads(), gradwire.get_num_threads()
    torch.set_num_threads(1)
    gradwire.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads[0])
        gradwire.set_num_threads(threads[1])


def _finish() -> None:
    """Wait for what was given to a GPU: calls return before their work is done."""
    if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        torch.cuda.synchronize()


def _nothing(*_: Any) -> None:
    pass
