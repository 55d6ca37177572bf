"""A plain model of exchanges in which ranks own ranges: what they send, merge and keep."""

import contextlib
import itertools
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any
from unittest import mock

import numpy as np
import torch
import torch.distributed as dist

import gradwire
from gradwire.torch.exchange.wire import HEADER_NBYTES
from gradwire.torch.transport.process_group import ProcessGroupChannel
from tests.distributed.codecs import SEVERAL
from tests.distributed.scenarios.common import (
    SHAPES,
    Given,
    attached,
    gradients_of,
    integers,
    residuals,
)

__all__ = ["Plain", "steps"]


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
        What `steps` returns of a step.
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


@dataclass(frozen=True)
class Plain:
    """A codec, and what becomes of values, in numpy."""

    codec: gradwire.Codec
    encode: Callable[[np.ndarray, int], np.ndarray]
    """What is decoded of a frame of these values, in columns of so many."""
    merge: Callable[[np.ndarray, int, int], np.ndarray]
    """What an owner sends of these sums, of so many entries that ranks have sent on average."""
    nbytes: Callable[[np.ndarray, np.ndarray, int, int], int]
    """Bytes of a part: its values, what is sent of them, its place, and its columns."""
    waits: bool = False
    """Whether the residual of an owner is left out of its encodes, and added to its sums."""
    in_columns: bool = False

    def check(self, ranks: list[dict[str, Any]]) -> None:
        """Hold one step of all ranks to the plain model, to the bit and the byte."""
        size = len(ranks)
        every = range(size)
        parts = {name: np.zeros((size, size), int) for name in ranks[0]["input"]}
        made = {name: np.zeros(size, int) for name in ranks[0]["input"]}
        for name in ranks[0]["input"]:
            inputs = [step["input"][name].copy() for step in ranks]
            numel = inputs[0].size
            column = SHAPES[name][1] if len(SHAPES[name]) > 1 else numel
            group = column if self.in_columns else 1
            runs = runs_of(numel, ranks[0]["runs"][name], size, group)
            waiting = [np.zeros_like(values) for values in inputs]
            for owner, start, stop in runs if self.waits else ():
                waiting[owner][start:stop] = ranks[owner]["before"][name][start:stop]
                inputs[owner][start:stop] -= waiting[owner][start:stop]
            sent = [self.encode(values, column) for values in inputs]
            left = [values - said for values, said in zip(inputs, sent, strict=True)]
            average = np.zeros(numel, np.float64)
            for owner, start, stop in runs:
                at = slice(start, stop)
                total = np.zeros(stop - start, np.float32)
                for rank in every:
                    total += sent[rank][at]
                    part = inputs[rank][at], sent[rank][at]
                    parts[name][rank, owner] += self.nbytes(*part, start, column)
                if self.waits:
                    total += left[owner][at] + waiting[owner][at]
                    left[owner][at] = 0.0
                count = sum(int(np.count_nonzero(values[at])) for values in sent)
                again = self.merge(total, -(-6 * count // (5 * size)), column)
                average[at] = again / np.float32(size)
                left[owner][at] += total - again
                made[name][owner] += self.nbytes(total, again, 0, column)
            for rank in every:
                np.testing.assert_array_equal(ranks[rank]["average"][name], average, err_msg=name)
                np.testing.assert_array_equal(ranks[rank]["after"][name], left[rank], err_msg=name)
        for rank in every:
            check_bytes(rank, ranks[rank], parts, made)


class Counting:
    """Counts bytes where torch's process groups take them."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.calls: list[tuple[int, int]] = []
        self._real: Any = (
            ProcessGroupChannel.all_to_all,
            ProcessGroupChannel.all_gather,
            dist.ProcessGroup.send,
        )
        self._sent = threading.local()  # by this thread, in the collective that it starts
        self._stack = contextlib.ExitStack()

    def all_to_all(
        self,
        group: ProcessGroupChannel,
        out: torch.Tensor,
        mine: torch.Tensor,
        theirs: Any = None,
        sizes: Any = None,
    ) -> Any:
        self._sent.nbytes = 0
        work = self._real[0](group, out, mine, theirs, sizes)
        self.calls.append((mine.numel(), self._sent.nbytes))
        return work

    def send(self, group: Any, parts: list[torch.Tensor], *rest: Any) -> Any:
        self._sent.nbytes = getattr(self._sent, "nbytes", 0) + sum(each.nbytes for each in parts)
        return self._real[2](group, parts, *rest)

    def all_gather(self, group: ProcessGroupChannel, out: torch.Tensor, mine: torch.Tensor) -> Any:
        if mine.numel() == HEADER_NBYTES:  # not the message of a report
            self.calls.append((HEADER_NBYTES, HEADER_NBYTES * (self.size - 1)))
        return self._real[1](group, out, mine)

    def __enter__(self) -> "Counting":
        for of, name, spy in (
            (ProcessGroupChannel, "all_to_all", lambda *call: self.all_to_all(*call)),
            (ProcessGroupChannel, "all_gather", lambda *call: self.all_gather(*call)),
            (dist.ProcessGroup, "send", lambda *call: self.send(*call)),
        ):  # functions, which become methods of the group
            self._stack.enter_context(mock.patch.object(of, name, spy))
        return self

    def __exit__(self, *raised: object) -> None:
        self._stack.close()


def steps(rank: int, size: int, codec: Any, scale: int) -> list[dict[str, Any]]:
    """On a rank: of each step what went in, came out and was left, and what was counted."""
    found = []
    with attached(Given(), codec, **SEVERAL) as (model, handle):
        for step in range(4):
            handle.report(reset=True)
            before = residuals(handle)
            gradients = {name: scale * each for name, each in integers(5, rank, step).items()}
            model.zero_grad()
            with Counting(size) as counting:
                model(gradients).backward()
            found.append(
                {
                    "input": {key: before[key] + gradients[key].numpy().ravel() for key in before},
                    "before": before,
                    "average": gradients_of(model.module),
                    "after": residuals(handle),
                    "calls": counting.calls,
                    "wire": handle.report().wire_bytes,
                    "buckets": [
                        ([each.name for each in contents.compressed], contents.dense_numel)
                        for contents in handle._passes._submitted
                    ],
                    "runs": {key: handle._parameters[key].run for key in before},
                }
            )
    return found
