"""Ranks whose buckets are due at other times, and that meet for decisions all the same."""

from datetime import timedelta
from typing import Any

import torch

from gradwire._auto import FP32, Plan
from gradwire.torch.transport.horovod import library
from tests.distributed.scenarios.auto import CODED, every, ratios, scripted
from tests.distributed.scenarios.common import SHAPES, Given, fingerprint, integers
from tests.horovod.scenarios.training import Run

STEPS = 22
WRAP = {"groups": 5, "timeout": timedelta(seconds=60)}
"""Ranks that wait for each other in different places fail."""


def all_but_one(count: int) -> Plan:
    """The codec for all buckets but the last one."""
    return (*(CODED for _ in range(count - 1)), FP32)


def _used(rank: int, step: int, by: int) -> list[str]:
    """All names, in some steps and on one rank without that of the first bucket."""
    names = list(SHAPES)
    return names[:-1] if step % 3 and rank == by else names


def between_backward_and_step(rank: int, world_size: int) -> dict[str, Any]:
    """Add up a loss where one rank has still to exchange its first bucket."""
    seen, losses = set(), []
    with scripted(every(CODED), all_but_one, every(FP32), due=1):  # as the decider itself
        run = Run("auto", model=Given(), lr=1.0, wrap=WRAP)
        for step in range(STEPS):
            run.optimizer.zero_grad()
            run.model(integers(7, rank, step, _used(rank, step, 1))).backward()
            loss = library.allreduce(torch.ones(1), op=library.Sum, name="loss")
            losses.append(loss.item() / world_size)
            run.optimizer.step()
            seen.add(tuple(ratios(run.handle).values()))
        return {"seen": sorted(map(repr, seen)), "losses": losses, "print": run.end()}


def of_two_optimizers(rank: int, world_size: int) -> dict[str, Any]:
    """Compute the gradients of two optimizers in one pass, of which ranks have different ones."""
    del world_size
    seen = set()
    with scripted(every(CODED), every(CODED), all_but_one, all_but_one, every(FP32), every(FP32)):
        runs = [Run("auto", model=Given(), lr=1.0, wrap=WRAP) for _ in range(2)]
        for step in range(STEPS):
            parts = []
            for by, run in enumerate(runs):
                run.optimizer.zero_grad()
                parts.append(run.model(integers(7 + by, rank, step, _used(rank, step, by))))
            sum(parts).backward()
            for run in runs:
                run.optimizer.step()
                seen.add(tuple(ratios(run.handle).values()))
        prints = [fingerprint(run.model) for run in runs]
        for run in runs:
            run.end()
    return {"seen": sorted(map(repr, seen)), "prints": prints}


def frozen(rank: int, world_size: int) -> dict[str, Any]:
    """Leave the codec while a parameter is frozen, and take it in again as its bucket is then."""
    del world_size
    first = next(iter(SHAPES))
    seen, meets = [], []
    with scripted(every(CODED), every(CODED), every(FP32), due=1):
        run = Run("auto", model=Given(), lr=1.0, wrap={"timeout": timedelta(seconds=60)})
        deciding: Any = run.handle._passes.auto
        names = list(SHAPES)
        for step in range(44):
            if step in (6, 24):  # other buckets, and so it begins anew
                run.model.get_parameter(first).requires_grad_(step == 24)
            used = names if not 6 <= step < 24 else names[1:]
            run.optimizer.zero_grad()
            run.model(integers(7, rank, step, used)).backward()
            run.optimizer.step()
            seen.append(ratios(run.handle))
            meets.append(deciding.meets)
        return {"seen": seen, "meets": meets, "first": first, "print": run.end()}
