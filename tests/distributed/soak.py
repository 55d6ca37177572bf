"""A soak: training under random faults, restarts and changes of the number of ranks.

What happens in a step is drawn from its number alone: all ranks know it, and so do those that take
the step once more after a restart. Gradients are whole multiples of a unit that outlives every
split of a residual, so that the accounts of exact codecs must agree to the last bit.
"""

import importlib
import itertools
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

import gradwire
from tests.distributed.ranks import Ranks
from tests.distributed.scenarios.common import SHAPES, fingerprint, integers, residuals

Sums = dict[str, NDArray[np.float64]]

CHANCES = {
    "non-finite": 0.1,  # a NaN or an infinity in one parameter on one rank
    "loss scale": 0.1,  # set to a random power of two
    "accumulated": 0.2,  # passes within no_sync before the one that is exchanged
    "unused": 0.3,  # every rank uses other parameters
    "paused": 0.05,  # averaged plainly
    "discarded": 0.05,  # undone after the pass
    "dropped": 0.05,  # cleared before the optimizer's step
}
"""What may happen in a step, and how often."""
SEED = 1034
"""The first 25 steps have at least two of each, and one that is paused after a dropped one."""
AHEAD = 3
"""Steps that are taken after a checkpoint, before all processes are killed."""


def chances(codec: gradwire.Codec, *, scaled: bool) -> frozenset[str]:
    """Return what a trainer with this codec can deal with."""
    left_out = set() if scaled else {"loss scale"}
    return frozenset(CHANCES) - left_out


class Soaked:
    """What a soak drives on every rank: a model like `common.Given`, trained with a codec.

    A module has a class of this sort, called `Trainer`. It is made with the keywords that the test
    passes.
    """

    module: nn.Module
    takes: frozenset[str]
    """Which of `CHANCES` it can deal with."""
    _optimizer: Any
    _scaler: torch.amp.GradScaler
    _handle: Any

    def set_scale(self, scale: float) -> None:
        """Set the loss scale of the next step."""
        self._scaler.load_state_dict({**self._scaler.state_dict(), "scale": scale})

    def backward(self, passes: list[dict[str, torch.Tensor]], *, paused: bool) -> bool:
        """Run the passes of a step, whose gradients add up; return False if it is to be skipped.

        With ``paused``, they are averaged plainly.
        """
        raise NotImplementedError

    def discard(self) -> None:
        """Undo what was exchanged in this step."""
        self._handle.discard()

    def step(self) -> Sums | None:
        """Apply the averages and return them, unscaled and flat; None if the step is skipped."""
        raise NotImplementedError

    def clear(self) -> None:
        """Clear the gradients."""
        self._optimizer.zero_grad()

    def residuals(self) -> Sums:
        """Return what this rank has not sent yet."""
        return {name: each.astype(np.float64) for name, each in residuals(self._handle).items()}

    def _halves(self) -> dict[str, Any]:
        return {"model": self.module, "optimizer": self._optimizer, "scaler": self._scaler}

    def state_dict(self) -> dict[str, Any]:
        """Return all that a restart needs of this rank."""
        saved = {name: each.state_dict() for name, each in self._halves().items()}
        return {**saved, "handle": self._handle.state_dict()}

    def load(self, saved: list[dict[str, Any]]) -> None:
        """Load what any number of old ranks returned from `state_dict`."""
        for name, each in self._halves().items():
            each.load_state_dict(saved[0][name])
        self._handle.load_state_dict([each["handle"] for each in saved])

    def close(self) -> None:
        """End the training."""
        self._handle.detach()


class Accounts:
    """What went in, what was applied, and what happened."""

    def __init__(self, quantum: float | None) -> None:
        self.given: Sums = {name: np.zeros(int(np.prod(SHAPES[name]))) for name in SHAPES}
        self.applied = {name: np.zeros_like(zero) for name, zero in self.given.items()}
        self.events: Counter[str] = Counter()
        self._quantum = quantum

    def give(self, passes: list[dict[str, torch.Tensor]]) -> None:
        """Count the gradients of this rank."""
        for each in passes:
            for name, values in each.items():
                self.given[name] += values.double().numpy().ravel()

    def apply(self, averages: Sums, world_size: int) -> None:
        """Count what all ranks have sent: averages are rounded, but their sums have a quantum."""
        for name, average in averages.items():
            total = average * world_size
            if self._quantum is not None:
                total = np.rint(total / self._quantum) * self._quantum
            self.applied[name] += total


def part(
    rank: int,
    size: int,
    *,
    trainer: str,
    setting: dict[str, Any],
    folder: str,
    number: int,
    steps: tuple[int, int],
    ahead: int,
    unit: float,
    quantum: float | None,
) -> dict[str, Any]:
    """Go on from the checkpoint before this part, train, save, and train ``ahead`` in vain.

    Nothing of the last steps is saved or counted: whoever resumes takes them once more.
    """
    soaked: Soaked = importlib.import_module(trainer).Trainer(**setting)
    saved = sorted(Path(folder).glob(f"{number - 1}-rank*.pt"))
    if number:
        soaked.load([torch.load(file, weights_only=True) for file in saved])
    accounts = Accounts(quantum)
    resumed = fingerprint(soaked.module)
    prints = []
    for step in range(*steps):
        _take(soaked, accounts, rank, size, step, unit)
        prints.append(fingerprint(soaked.module))
    left = soaked.residuals()
    torch.save(soaked.state_dict(), Path(folder) / f"{number}-rank{rank}.pt")
    in_vain = []
    for step in range(steps[1], steps[1] + ahead):
        _take(soaked, Accounts(quantum), rank, size, step, unit)
        in_vain.append(fingerprint(soaked.module))
    soaked.close()
    return {
        "given": accounts.given,
        "applied": accounts.applied,
        "left": left,
        "events": accounts.events,
        "resumed": resumed,
        "prints": prints,
        "ahead": in_vain,
    }


def _take(
    soaked: Soaked, accounts: Accounts, rank: int, world_size: int, step: int, unit: float
) -> None:
    """Take one step, and whatever is to happen in it."""
    chance = np.random.default_rng([SEED, step])
    drawn = [name for name, share in CHANCES.items() if chance.random() < share]
    events = soaked.takes.intersection(drawn)
    if "paused" in events:
        events -= {"non-finite"}  # plain DDP has no answer to that
    accounts.events.update([*events, "steps"])
    passes = _gradients(chance, events, rank, world_size, step, unit)
    if "loss scale" in events:
        soaked.set_scale(2.0 ** chance.integers(0, 17))
    soaked.clear()
    counts = soaked.backward(passes, paused="paused" in events)
    if "discarded" in events:
        soaked.discard()
    elif counts and "dropped" not in events:
        before = fingerprint(soaked.module)
        averages = soaked.step()
        assert (averages is None) == ("non-finite" in events), (step, events)
        if averages is None:
            assert fingerprint(soaked.module) == before, "a step that does not count was applied"
        else:
            accounts.give(passes)
            accounts.apply(averages, world_size)
            accounts.events["applied"] += 1
    soaked.clear()


def _gradients(
    chance: np.random.Generator,
    events: frozenset[str],
    rank: int,
    world_size: int,
    step: int,
    unit: float,
) -> list[dict[str, torch.Tensor]]:
    """The gradients of each pass of this rank."""
    names = list(SHAPES)
    if "unused" in events:
        own = np.random.default_rng([SEED, step, rank])
        names = [name for name in names if own.random() < 0.6] or ["b"]
    passes = []
    for at in range(int(chance.integers(2, 4)) if "accumulated" in events else 1):
        drawn = integers(SEED, rank, 4 * step + at, names)
        passes.append({name: unit * each for name, each in drawn.items()})
    if "non-finite" in events:
        at, entry = int(chance.integers(len(passes))), chance.random()
        value = float(chance.choice([np.nan, np.inf, -np.inf]))
        if rank == chance.integers(world_size):
            flat = passes[at][names[step % len(names)]].view(-1)
            flat[int(entry * len(flat))] = value
    return passes


@dataclass
class Outcome:
    """What a soak has seen."""

    seconds: float = 0.0
    events: Counter[str] = field(default_factory=Counter)
    largest_error: float = 0.0
    """Of an entry, between what went in and what came out or is left, over the largest sum."""

    def __str__(self) -> str:
        counted = ", ".join(f"{count} {name}" for name, count in sorted(self.events.items()))
        return f"{self.seconds:.0f} s: {counted}; largest error {self.largest_error:.1e}"


def soak(
    start: Callable[[int], Ranks],
    folder: Path,
    steps: int,
    worlds: list[int],
    *,
    trainer: str,
    setting: dict[str, Any],
    error: float,
    without: set[str],
) -> Outcome:
    """Train so many steps, in as many parts as there are numbers of ranks.

    Checked are: replicas are bit-identical after every step; a restart with the same number of
    ranks goes on bit for bit; after every part, what all ranks gave since the first step is what
    was applied and what is left in the residuals; and everything has happened at least twice.

    Parameters
    ----------
    start : callable
        Starts so many ranks.
    folder : Path
        For checkpoints.
    steps : int
        Number of steps.
    worlds : list of int
        Number of ranks of each part. Each is a power of two, or three.
    trainer : str
        Module whose `Trainer` is driven.
    setting : dict
        Keywords of the trainer.
    error : float
        The largest error that sums may have, over the largest sum; 0.0: they are exact.
    without : set of str
        Which of `CHANCES` the trainer cannot deal with.
    """
    began, outcome = time.monotonic(), Outcome()
    pairs = list(itertools.pairwise(worlds))
    # A residual that is split among three ranks stays a multiple of something then.
    unit = quantum = float(3 ** sum(3 == new != old for old, new in pairs))
    given: dict[str, Any] = {}
    applied: dict[str, Any] = {}
    expected: list[str] = []
    last = ""
    for number, world_size in enumerate(worlds):
        resized = number > 0 and world_size != worlds[number - 1]
        if resized:
            quantum /= world_size
        at, end = (steps * part // len(worlds) for part in (number, number + 1))
        ranks = start(world_size)
        try:
            results = ranks.run(
                part,
                limit=240.0 + (end - at),
                trainer=trainer,
                setting=setting,
                folder=str(folder),
                number=number,
                steps=(at, end),
                ahead=AHEAD,
                unit=unit,
                quantum=None if error else quantum,
            )
        finally:
            ranks.stop()
        first = results[0]
        for each in results:
            assert each["resumed"] == (last or each["resumed"])
            assert each["prints"] == first["prints"], f"replicas differ in {at}..{end}"
            assert each["ahead"] == first["ahead"]
        if not resized:
            assert first["prints"][: len(expected)] == expected, f"resumed otherwise at {at}"
        last, expected = first["prints"][-1], first["ahead"][: end - at]
        for name in first["given"]:
            given[name] = given.get(name, 0.0) + sum(each["given"][name] for each in results)
            applied[name] = applied.get(name, 0.0) + first["applied"][name]
            left = sum(each["left"].get(name, 0.0) for each in results)
            scale = max(1.0, np.abs(given[name]).max())
            found = float(np.abs(applied[name] + left - given[name]).max() / scale)
            outcome.largest_error = max(outcome.largest_error, found)
        outcome.events.update(first["events"])
        outcome.events.update({"restarted": int(number > 0), "resized": int(resized)})
    outcome.seconds = time.monotonic() - began
    print(outcome)
    assert outcome.events["steps"] == steps
    assert outcome.largest_error <= error
    assert {each for each in CHANCES if outcome.events[each] < 2} == without
    return outcome
