"""A plain model of exchanges in which ranks own ranges: who owns what, and what that takes."""

import itertools
from typing import Any

import numpy as np

__all__ = ["check_bytes", "runs_of"]


def runs_of(
    numel: int, run: tuple[int, int], size: int, group: int = 1
) -> list[tuple[int, int, int]]:
    """Who owns which entries of a parameter: owner, start and stop, entry by entry.

    Runs begin at the nearest multiple of ``group``, if they have four groups on average.
    """
    before, together = run
    length = -(-together // size)
    if numel > length * (size - 1):
        starts = np.searchsorted(
            [numel * each // size for each in range(1, size)], range(numel), "right"
        )
        owners = (before // length + starts) % size
    else:
        owners = (before + np.arange(numel)) // length % size
    edges = [0, *(np.flatnonzero(np.diff(owners)) + 1).tolist(), numel]
    moved = edges
    if 4 * group <= length:
        nearest = [int(np.floor(each / group + 0.5)) * group for each in edges[1:-1]]
        moved = [0, *(min(each, numel) for each in nearest), numel]
    whose = [int(owners[edge]) for edge in edges[:-1]]
    runs = zip(whose, itertools.pairwise(moved), strict=True)
    return [(owner, start, stop) for owner, (start, stop) in runs if start < stop]


def check_bytes(
    rank: int, found: dict[str, Any], parts: dict[str, np.ndarray], made: dict[str, np.ndarray]
) -> None:
    """Hold what a rank has passed to collectives in a step to the model.

    Parameters
    ----------
    rank : int
    found : dict
        What `scenarios.scattered.steps` returns of a step.
    parts : dict of str to numpy.ndarray
        Of each parameter, bytes of the parts from rank to owner.
    made : dict of str to numpy.ndarray
        Bytes of what each owner makes of it.
    """
    size = len(next(iter(made.values())))
    expected = []
    for names, dense in found["buckets"]:
        ends = [dense * each // size for each in range(size + 1)]
        segments = 4 * np.diff(ends)
        front = 56 + -(-len(names) // 8)
        to_owners = segments + sum(parts[name][rank] for name in names)
        result = int(segments[rank] + sum(made[name][rank] for name in names))
        expected += [
            (size * front, (size - 1) * front),
            (int(to_owners.sum()), int(to_owners.sum() - to_owners[rank])),
            (56, 56 * (size - 1)),
            (size * result, (size - 1) * result),
        ]
    assert sorted(found["calls"]) == sorted(expected)
    assert found["wire"] == sum(wire for _, wire in expected)
