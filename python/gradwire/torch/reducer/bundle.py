"""Several parameters of one bucket that are encoded as one tensor."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from gradwire.torch import backends
from gradwire.torch.reducer import parameters as making
from gradwire.torch.reducer.member import Snapshots, without_pace
from gradwire.torch.reducer.order import BUFFERS
from gradwire.torch.reducer.record import Parameter

__all__ = ["Bundle", "Tracked"]


@dataclass(frozen=True, slots=True)
class Tracked:
    """What a bundle continues from, besides what its members keep.

    Attributes
    ----------
    scalars : dict of str to float
        What the selection tracks.
    sizes : list of int
        What `SizeLimit.state` returned.
    step : int
        Number of encodes.
    """

    scalars: dict[str, float]
    sizes: list[int]
    step: int = 0


class Bundle:
    """Parameters that are encoded as one tensor. For an exchange it is a parameter.

    The states of its members are parts of its own from the first encode on, until other bundles
    take them over.

    Attributes
    ----------
    members : tuple of Parameter
        In the order of their entries. All have the same codec and, with a memory that makes steps,
        the same learning rate and number of gradients.
    bucket : tuple of str
        The names of all compressed parameters of the bucket.
    name : str
        Determines random numbers; also of errors that no member is the cause of.
    codec, limit, turn, tensor, numel
        As those of a `Parameter`.
    ahead : int
        By how many the second moment's steps exceed the encodes.

    Parameters
    ----------
    members, bucket
        The attributes.
    tracked : Tracked, optional
        What it continues from.
    """

    __slots__ = (
        "_before",
        "_saved",
        "_state",
        "_step",
        "_tracked",
        "ahead",
        "bucket",
        "codec",
        "limit",
        "members",
        "name",
        "numel",
        "tensor",
        "turn",
    )

    def __init__(
        self,
        members: tuple[Parameter, ...],
        bucket: tuple[str, ...],
        tracked: Tracked | None = None,
    ) -> None:
        first = members[0]
        self.members = members
        self.bucket = bucket
        self.name = first.name if len(members) == 1 else f"{first.name} and {len(members) - 1} more"
        self.tensor: torch.Tensor = first.tensor
        self.turn = first.turn
        self.numel = sum(each.numel for each in members)
        self.codec: Any = None
        self.limit: Any = None
        making.use(self, first.codec)
        steps = [each.state.step for each in members]
        self._step = max(steps) if tracked is None else max(tracked.step, *steps)
        self.ahead = first.state.pace - self._step
        self._tracked = {} if tracked is None else dict(tracked.scalars)
        if tracked is not None:
            limit: Any = self.limit
            limit.load(tracked.sizes)
        self._state: Any = None
        self._saved: dict[str, Any] | None = None
        self._before: tuple[set[str], dict[str, float], int] | None = None

    @property
    def state(self) -> Any:
        """The state of all members; they join when it is first asked for."""
        if self._state is None:
            self._gather()
        return self._state

    @property
    def step(self) -> int:
        """Number of successful encodes."""
        return self._step if self._state is None else int(self._state.step)

    @property
    def is_whole(self) -> bool:
        """Whether the state of every member is a part of this one's."""
        return self._state is not None and all(each.state.bundle is self for each in self.members)

    def snapshot(self) -> dict[str, Any]:
        """Return what the state saves; its arrays are not to be written to.

        Once a member is elsewhere, it does not change any more, and is copied only once.
        """
        if self._saved is not None:
            return self._saved
        saved: dict[str, Any] = self.state.state_dict()
        if not self.is_whole:
            self._saved = saved
        return saved

    def tracked(self) -> Tracked:
        """Return what a bundle of the same members would continue from."""
        scalars = self._tracked
        if self._state is not None:
            scalars = without_pace(self._state.state_dict()["scalars"])
        return Tracked(scalars, self.limit.state(), self.step)

    def undo(self, members: Sequence[Parameter]) -> None:
        """Undo the last encode of some of the members, which all are apart then."""
        after = self.state.state_dict()
        backends.of(self.tensor).rollback([self.state])
        self.part(members, self.state.state_dict(), after, undoable=True)

    def part(
        self,
        undone: Sequence[Parameter],
        before: Mapping[str, Any],
        after: Mapping[str, Any],
        *,
        undoable: bool,
    ) -> None:
        """Have all members be apart: some with what the state was, the others with what it is.

        Parameters
        ----------
        undone : sequence of Parameter
            Members whose last encode is undone.
        before, after : mapping
            What the state saved before that encode, and after it.
        undoable : bool
            The encode of the others may be undone later.
        """
        names = {each.name for each in undone}
        for each in self.members:
            if each.name in names:
                each.state.leave(before, None)
            else:
                each.state.leave(after, before if undoable else None)
        self._tracked = without_pace(after["scalars"])
        self._step, self._state = int(after["step"]), None
        applied = {each.name for each in self.members} - names
        was = without_pace(before["scalars"]), int(before["step"])
        self._before = (applied, *was) if undoable else None

    def revert(self, name: str) -> None:
        """Take back what the last encode has left here, once that of no member counts.

        Parameters
        ----------
        name : str
            Of a member that was `part` of it and is undone now.
        """
        if self._before is None:
            return
        applied, scalars, step = self._before
        applied.discard(name)
        if not applied:
            self._tracked, self._step, self._before = scalars, step, None

    def _gather(self) -> None:
        first = self.members[0].state
        init = backends.of(self.tensor).init_state
        state: Any = init(self.codec, self.numel, self.name, first.rank)
        if not all(each.state.is_new for each in self.members):
            self._fill(state)
        if first.learning_rate is not None:
            state.learning_rate = first.learning_rate
        left = {id(each.state.bundle): each.state.bundle for each in self.members}
        ends = np.cumsum([each.numel for each in self.members]).tolist()
        for each, end in zip(self.members, ends, strict=True):
            each.state.join(self, slice(end - each.numel, end), self._step)
        self._state = state
        for bundle in left.values():
            if bundle is not None:
                bundle.release()

    def release(self) -> None:
        """Free the state, if no member is a part of it any more."""
        if self._state is not None and all(each.state.bundle is not self for each in self.members):
            self._step, self._state, self._saved = int(self._state.step), None, None

    def _fill(self, state: Any) -> None:
        """Load what the members keep."""
        whole, read = state.state_dict(), Snapshots()
        at = 0
        for each in self.members:
            if not each.state.is_new:
                own = read.of(each.state)
                for kind in BUFFERS:
                    if whole[kind] is not None:
                        whole[kind][at : at + each.numel] = own[kind]
            at += each.numel
        whole["step"] = self._step
        whole["scalars"] |= self._tracked
        if "second_moment_steps" in whole["scalars"]:
            whole["scalars"]["second_moment_steps"] = float(self._step + self.ahead)
        state.load_state_dict(whole)
