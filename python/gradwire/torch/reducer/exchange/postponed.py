"""The exchange by all-gather for memories in one buffer: nothing changes before a step is good.

A memory in one buffer cannot go back. So a bucket's frames are sent while its memories stay as
they are, and the gradients stay in the bucket. What has arrived is decoded once to other memory: to
know that it can be, and whether it overflows. When all buckets of a step are known to be good, on
all ranks alike, the memories are written, from the gradients and the frames of this rank, and then
the averages take the place of the gradients.
"""

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from gradwire.torch.reducer.bundle import Bundle
from gradwire.torch.reducer.exchange.all_gather import Contents, Gathered, idle, unused
from gradwire.torch.reducer.jobs import Flight, Job
from gradwire.torch.reducer.record import Parameter, Piece

__all__ = ["Postponed"]


class Postponed(Gathered):
    """Gathers the frames of all ranks, and completes the buckets of a step together."""

    postpones: ClassVar[bool] = True

    def _combine(self, flight: Flight, fronts: NDArray[np.uint8]) -> None:
        contents, job = flight.contents, flight.job
        assert isinstance(contents, Contents)
        self._slots.give(contents.slot, job.bucket.used(contents.slot))  # it was gathered, too
        try:
            self._read(flight, contents, fronts)
            trial = replace(job, bucket=job.bucket.spare())
            self._decode(trial, contents, counts=False)
            self._check(trial)
        except BaseException:
            self._give(job, contents)
            raise

    def _give(self, job: Job, contents: Contents) -> None:
        self._gathers.give(contents.gathered, job.bucket.used(contents.gathered))

    def _complete(self, flight: Flight) -> None:
        contents, job = flight.contents, flight.job
        assert isinstance(contents, Contents)
        self._settle(job, contents)
        self._decode(job, contents)
        job.bucket.store()
        self._give(job, contents)

    def _undo(self, job: Job, units: Sequence[Piece]) -> None:
        """Undo what no rank uses; of a bundle that is used in part, once it is written."""
        none = {each.parameter.name for each in units}
        for piece in job.layout.pieces:
            if none.issuperset(each.parameter.name for each in piece.units):
                super()._undo(job, piece.units)

    def _settle(self, job: Job, contents: Contents) -> None:
        layout, plan = job.layout, contents.plan
        sizes = contents.readings[self.rank].sizes
        first = self.rank * plan.nbytes + plan.frames_at
        starts = list(itertools.accumulate(sizes[:-1], initial=first))
        used = np.flatnonzero(~unused(contents.readings)).tolist()
        none = [layout.units[i].parameter for i in np.flatnonzero(idle(contents.readings))]
        partly = [bundle for i in used if (bundle := _Partly.of(layout.compressed[i], none))]
        if used:
            job.bucket.settle(
                [layout.compressed[i].state for i in used],
                [end for i in used for end in layout.ends[2 * i : 2 * i + 2]],
                contents.gathered,
                [starts[i] for i in used],
                [sizes[i] for i in used],
                job.scale,
            )
        for each in partly:
            each.end(job)


@dataclass(frozen=True, slots=True, eq=False)
class _Partly:
    """A bundle of which some members are not used by any rank.

    Attributes
    ----------
    bundle : Bundle
    unused : list of Parameter
    before : dict
        What its state saved before it was written.
    """

    bundle: Bundle
    unused: list[Parameter]
    before: dict[str, Any]

    @classmethod
    def of(cls, unit: Any, unused: Sequence[Parameter]) -> "_Partly | None":
        """Read the state of a bundle, if it is one of these."""
        if not isinstance(unit, Bundle):
            return None
        names = {each.name for each in unit.members}
        own = [each for each in unused if each.name in names]
        return cls(unit, own, unit.state.state_dict()) if own else None

    def end(self, job: Job) -> None:
        """Bring back what the unused members kept."""
        after = self.bundle.state.state_dict()
        self.bundle.part(self.unused, self.before, after, undoable=False)
        for each in self.unused:
            job.step.encoded.pop(each.name, None)
