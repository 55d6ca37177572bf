"""When the buckets of each pass were ready, sent and done, and medians over passes."""

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import torch

from gradwire._auto import Figures
from gradwire._auto.step_stats import spread
from gradwire.torch.engine.step import Step


@dataclass(frozen=True, slots=True)
class BucketPlace:
    """A bucket of the model, and whether a codec or bfloat16 may be used for it."""

    key: tuple[int, ...]  # the ids of its parameters
    numel: int
    itemsize: int  # bytes of an entry
    codable: bool
    halvable: bool


class Places:
    """The buckets seen so far; successive passes share the same objects.

    ``halves`` as in `Automatic`; ``codes`` if the codec applies to any.
    """

    def __init__(self, *, halves: bool = True, codes: bool = True) -> None:
        self._halves = halves
        self._codes = codes
        self._seen: dict[tuple[int, ...], BucketPlace] = {}

    def of(
        self,
        key: tuple[int, ...],
        buffer: torch.Tensor,
        codable: Callable[[], bool],
        numel: int | None = None,
    ) -> BucketPlace:
        """Return the place of a bucket; whether a codec applies to it is asked the first time."""
        place, itemsize = self._seen.get(key), buffer.element_size()
        numel = buffer.numel() if numel is None else numel
        if place is None or (place.numel, place.itemsize) != (numel, itemsize):
            dense = buffer.layout == torch.strided
            half = self._halves and dense and buffer.dtype == torch.float32
            place = BucketPlace(key, numel, itemsize, dense and self._codes and codable(), half)
            self._seen[key] = place
        return place


@dataclass(slots=True, eq=False)
class BucketRecord:
    """One bucket in one pass, by the clock of this process."""

    ready: float
    nbytes: float = 0.0  # that this rank sends
    done: float = 0.0  # 0 as long as it is under way
    coded: bool = False  # the rest is among the marks of the step
    worked: float | None = None
    """When it was ready by the processor time of the thread that runs the backward pass; None if
    that is not all that the pass takes, as with several threads, or on a device."""


@dataclass(slots=True, eq=False)
class PassRecord:
    """One pass: its buckets so far."""

    timed: bool = True
    """Its buckets are noted, too. Places are of every pass: they tell that buckets are others."""
    codes: bool = False  # some bucket so far went by the codec
    places: list[BucketPlace] = field(default_factory=list)
    buckets: list[BucketRecord] = field(default_factory=list)
    step: Step | None = None  # what coded buckets belong to
    complete: bool = False  # its last bucket was handed in
    end: float = 0.0  # when the next pass had its first bucket; 0 until then

    def own(self) -> list[float]:
        """Return when each bucket would have been ready if the thread had not been held up."""
        first, found = self.buckets[0], list[float]()
        for each in self.buckets:
            at = each.ready - first.ready
            if each.worked is not None and first.worked is not None:
                at = min(at, each.worked - first.worked)
            found.append(at)
        return found

    def spans(self) -> list[tuple[float, float, float, float]] | None:
        """Return when each bucket was ready, sent, exchanged and done, with its bytes.

        None if not all of it is known, as of a pass that was rolled back.
        """
        marks = iter(self.step.marks if self.step is not None and self.step.counted else ())
        found = []
        for each in self.buckets:
            if each.coded:
                mark = next(marks, None)
                if mark is None or not mark.done:
                    return None
                each.nbytes = mark.wire_bytes
                found.append((each.ready, mark.sent, mark.arrived, mark.done))
            elif not each.done:
                return None
            else:
                found.append((each.ready, each.ready, each.done, each.done))
        return found


def figures(
    places: Sequence[BucketPlace], tensors: int, records: Sequence[PassRecord]
) -> Figures | None:
    """Return medians over these passes; None if no pass is fully known."""
    periods, ready, exchange, exposed, nbytes, held = [], [], [], [], [], []
    for record in records:
        spans = record.spans()
        if spans is None or not record.end:
            continue
        first, end, took = spans[0][0], 0.0, []
        for _, sent, arrived, _ in spans:
            took.append(max(0.0, arrived - max(sent, end)))
            end = max(end, arrived)
        periods.append(record.end - first)
        ready.append(record.own())
        held.append(spans[-1][0] - first - ready[-1][-1])
        exchange.append(took)
        exposed.append(max(0.0, max(done for *_, done in spans) - spans[-1][0]))
        nbytes.append([each.nbytes for each in record.buckets])
    if not periods:
        return None

    def median(rows: list[list[float]]) -> tuple[float, ...]:
        return tuple(map(statistics.median, zip(*rows, strict=True)))

    return Figures(
        steps=len(periods),
        period=statistics.median(periods),
        buckets=tuple(each.numel for each in places),
        tensors=tensors,
        codable=tuple(each.codable for each in places),
        halvable=tuple(each.halvable for each in places),
        ready=median(ready),
        exchange=median(exchange),
        nbytes=median(nbytes),
        exposed=statistics.median(exposed),
        spread=spread(periods),
        held=statistics.median(held),
    )
