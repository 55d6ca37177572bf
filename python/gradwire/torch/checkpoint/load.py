"""Saves and restores the states of all parameters, for the same or another number of ranks."""

import itertools
import json
from collections.abc import Mapping, Sequence
from typing import Any, get_args

import numpy as np
import torch
from numpy.typing import NDArray

from gradwire import _validate
from gradwire.state import State
from gradwire.torch.checkpoint.format import (
    Entry,
    Policy,
    RankState,
    check_parameters,
    pack,
    unpack,
)
from gradwire.torch.checkpoint.gather import run_on_all
from gradwire.torch.checkpoint.reshard import of_this_share, split
from gradwire.torch.engine.consensus import checksum
from gradwire.torch.engine.moments import with_second_moment
from gradwire.torch.engine.parameter import (
    BUFFERS,
    ParameterSlot,
    new_state,
    to_logical,
    to_memory,
)
from gradwire.torch.engine.scheduler import Scheduler
from gradwire.torch.engine.square_ratio import SquareRatio
from gradwire.torch.transport import Channel, RankTopology


def save(
    parameters: Mapping[str, ParameterSlot],
    codec: Any,
    place: RankTopology,
    step: int,
    scheduler: Scheduler,
) -> dict[str, Any]:
    """Return the checkpoint of one rank: plain tensors and one text."""
    state = RankState(
        rank=place.rank,
        world_size=place.size,
        node=place.node,
        share=place.share,
        shares=place.shares,
        step=step,
        schedule=scheduler.state_dict(),
        entries={name: _save(parameter) for name, parameter in parameters.items()},
        measured={
            name: to_logical(total, parameters[name]) for name, total in scheduler.sums().items()
        },
    )
    return pack(state, codec)


def _save(parameter: ParameterSlot) -> Entry:
    state = dict(parameter.state.state_dict())
    held = {kind: state.pop(kind, None) for kind in BUFFERS}
    buffers = {
        kind: to_logical(values, parameter) for kind, values in held.items() if values is not None
    }
    return Entry(state, parameter.limit.state(), buffers, parameter.ratio)


def load(
    parameters: Mapping[str, ParameterSlot],
    scheduler: Scheduler,
    place: RankTopology,
    channel: Channel,
    between: Channel,
    saved: Mapping[str, Any] | Sequence[Mapping[str, Any]] | None,
    policy: Policy,
) -> int:
    """Restore all parameters on all ranks, or none on any, as `Handle.load_state_dict`.

    The channels must be idle; they connect all ranks, and the ranks with this rank's share. Returns
    the step to continue from.
    """
    loading: list[_Loading] = []

    def read() -> Any:
        loading.append(_Loading(parameters, place, saved, policy, scheduler))
        mine = loading[0]
        steps = {name: state.step for name, state in mine.states.items()}
        made_in = {name: step for name, (_, step) in mine.moments.items()}
        return mine.summary, mine.schedule, steps, mine.ratios, mine.unchanged, made_in

    every = run_on_all(channel, read, "load")
    (mine,) = loading
    known = {rank: tuple(facts[0]) for rank, facts in enumerate(every) if facts[0] is not None}
    runs = {(size, step, epoch) for size, step, _, epoch in known.values()}
    if policy == "own":  # after a failure, some ranks may have ended a step that others have not
        runs = {(size, 0, 0) for size, _, _ in runs}
    # Sizes of frames are the same on the ranks that exchange them: those with one share.
    sizes = {(place.grid[rank][1], facts[2]) for rank, facts in known.items()}
    if len(runs) > 1 or len(sizes) > len({share for share, _ in sizes}):
        raise ValueError(
            "the ranks were given checkpoints of different runs or steps (world size, step, "
            f"checksum of frame sizes and schedule, epoch): {known}"
        )
    schedules = [schedule for _, schedule, *_ in every if schedule is not None]
    if policy == "own" and known:  # some may have begun an epoch that others have not
        ahead = max(known, key=lambda rank: (known[rank][1], known[rank][3]))
        mine.schedule = every[ahead][1]
    steps = [facts[2] for facts in every]
    run_on_all(channel, lambda: mine.complete(steps, schedules), "load")
    mine.share_moments(between, [every[rank][-1] for rank in place.partners])
    if not all(facts[4] for facts in every):
        mine.share_estimates(between)
    ratios: dict[str, list[Any]] = next((every[at][3] for at in place.partners if every[at][3]), {})
    merged = {name: SquareRatio(*fields) for name, fields in ratios.items()}
    mine.apply(merged, same_size=all(size == place.nodes for size, *_ in known.values()))
    return max((summary[1] for summary in known.values()), default=0)


class _Loading:
    """The new states, made and checked before any old one is replaced.

    ``summary`` has facts that must be the same on all ranks, and ``schedule`` is the saved position
    of the schedule: both are None on a rank that was given nothing. ``moments`` are the second
    moments, with their number of encodes, of which the average over the ranks is needed: if their
    number has changed, and each of them was given its own states or none.
    """

    def __init__(
        self,
        parameters: Mapping[str, ParameterSlot],
        place: RankTopology,
        saved: object,
        policy: Policy,
        scheduler: Scheduler,
    ) -> None:
        _validate.choice("policy", policy, get_args(Policy))
        self._parameters = parameters
        self._rank = place.rank
        self._scheduler = scheduler
        self._measured: dict[str, Any] = {}
        self.schedule: dict[str, Any] | None = None
        self.moments: dict[str, tuple[NDArray[np.float32], int]] = {}
        self.states: dict[str, State] = {}
        self.sizes: dict[str, list[int]] = {}
        self.ratios: dict[str, SquareRatio] = {}
        self.summary: tuple[int, int, int, int] | None = None
        self.unchanged = False  # each rank has what it saved
        by_rank = unpack(saved)
        redivided = any(state.shares != place.shares for state in by_rank.values())
        by_rank = of_this_share(by_rank, parameters, place)
        rank, world_size = place.node, place.nodes
        if not by_rank:
            if policy == "sum-and-split":
                raise ValueError(
                    'got no state_dict; only policy "keep", "drop" or "own" allows that'
                )
            self._fresh()
            return
        shapes = {name: slot.shape for name, slot in parameters.items()}
        for one in by_rank.values():
            check_parameters(one, shapes)
        first = next(iter(by_rank.values()))
        every = first.entries.items()
        self.ratios = {name: entry.ratio for name, entry in every if entry.ratio is not None}
        old_size = first.world_size
        if any((one.world_size, one.step) != (old_size, first.step) for one in by_rank.values()):
            raise ValueError("the state_dicts come from different runs or steps")
        if policy == "own":
            self._own(by_rank)
            rank = next(iter(by_rank))
        elif old_size == world_size and not redivided:
            self._same_size(by_rank, rank)
        else:
            self._other_size(by_rank, rank, world_size, old_size, policy)
        self.schedule = by_rank.get(rank, first).schedule
        if rank == 0 and 0 in by_rank:  # only the first node has sums of gradients
            self._measured = {
                name: to_memory(total, parameters[name])
                for name, total in by_rank[0].measured.items()
            }
        epoch = scheduler.prepare(self.schedule, {}).epoch
        decided = json.dumps(self.schedule, sort_keys=True, allow_nan=False)  # sent to all ranks
        # Other codecs would be other sizes.
        both = checksum((sorted(self.sizes.items()), "" if policy == "own" else decided))
        self.summary = (old_size, first.step, both, epoch)

    def _fresh(self) -> None:
        for name, parameter in self._parameters.items():
            self.states[name] = new_state(parameter, self._rank)

    def _own(self, by_rank: Mapping[int, RankState]) -> None:
        if len(by_rank) > 1:
            raise ValueError(
                f'policy "own" takes the state_dict of one rank, got those of {len(by_rank)}'
            )
        (mine,) = by_rank.values()
        self._estimate([mine])
        for name, entry in mine.entries.items():
            self._restore(name, entry, entry.buffers)

    def _same_size(self, by_rank: Mapping[int, RankState], rank: int) -> None:
        if rank not in by_rank:
            raise ValueError(
                f"this is rank {rank}, got the state_dict of rank {', '.join(map(str, by_rank))}: "
                "every rank has its own residual; save and load all of them"
            )
        self.unchanged = True
        for name, entry in by_rank[rank].entries.items():
            self._restore(name, entry, entry.buffers)
            self.sizes[name] = entry.sizes

    def _other_size(
        self,
        by_rank: Mapping[int, RankState],
        rank: int,
        world_size: int,
        old_size: int,
        policy: Policy,
    ) -> None:
        self._fresh()
        if policy != "sum-and-split":
            self._estimate(list(by_rank.values()))
        if policy == "drop":
            return
        if policy == "keep":
            if rank < old_size and rank not in by_rank:
                raise ValueError(
                    f'policy "keep" needs the state_dict of rank {rank} on rank {rank}'
                )
            old = by_rank.get(rank)
            for name, entry in old.entries.items() if old else ():
                self._restore(name, entry, entry.buffers)
            return
        if len(by_rank) < old_size:
            missing = (str(old) for old in itertools.count() if old not in by_rank)
            some = list(itertools.islice(missing, min(8, old_size - len(by_rank))))
            raise ValueError(
                f"the world size was {old_size} and is now {world_size}: policy {policy!r} needs "
                f"the state_dicts of all {old_size} ranks as a list on every rank, missing "
                f"{', '.join(some)}; or choose another policy"
            )
        for name in self._parameters:
            entries = [by_rank[old].entries[name] for old in range(old_size)]
            buffers = {kind: split(entries, kind, world_size) for kind in entries[0].buffers}
            self._restore(name, entries[rank % old_size], buffers)

    def _restore(self, name: str, entry: Entry, buffers: Mapping[str, torch.Tensor]) -> None:
        parameter = self._parameters[name]
        state = new_state(parameter, self._rank)
        arrays = {
            kind: to_memory(values, parameter, values.dtype) for kind, values in buffers.items()
        }
        state.load_state_dict(entry.state | dict.fromkeys(BUFFERS) | arrays)
        self.states[name] = state

    def _estimate(self, states: Sequence[RankState]) -> None:
        """Average the second moments of these ranks, as this rank's share of an average of all."""
        for name, parameter in self._parameters.items():
            entries = [state.entries[name] for state in states]
            if all("second_moment" in entry.buffers for entry in entries):
                values = to_memory(split(entries, "second_moment", len(entries)), parameter)
                step = _validate.integer("step", entries[0].state.get("step"), low=0, high=2**53)
                self.moments[name] = (values, step)

    def share_moments(self, channel: Channel, made_in: Sequence[Mapping[str, int]]) -> None:
        """Give all ranks, also new ones, the average of the second moments. A collective.

        Without one, a state of many encodes would take its first steps far too large.
        """
        for name in sorted({name for theirs in made_in for name in theirs}):
            steps = [theirs[name] for theirs in made_in if name in theirs]
            numel = self._parameters[name].numel
            total = torch.zeros(numel, dtype=torch.float64, device="cpu")
            if name in self.moments:
                total += torch.from_numpy(self.moments[name][0])
            channel.all_reduce(total).wait()
            mean = total.div_(len(steps)).float().numpy()
            state = self.states[name]
            state.load_state_dict(with_second_moment(state, mean, max(steps)))

    def share_estimates(self, channel: Channel) -> None:
        """Give all ranks the mean of the estimates that these ranks now have. A collective."""
        for name, parameter in self._parameters.items():
            if parameter.codec.memory.estimates:
                saved = self.states[name].state_dict()
                total = torch.from_numpy(saved["residual"]).double()
                channel.all_reduce(total).wait()
                mean = total.div_(channel.size).float().numpy()
                self.states[name].load_state_dict(saved | {"estimate": mean})

    def complete(
        self, steps: Sequence[Mapping[str, int]], schedules: Sequence[Mapping[str, Any]]
    ) -> None:
        """Get the state from other ranks if this one was given none."""
        # Ranks with a shared seed draw the same numbers only if their states have the same steps.
        for name, state in self.states.items():
            step = max(theirs[name] for theirs in steps)
            if state.step != step:
                state.load_state_dict({**state.state_dict(), "step": step})
        schedule = self.schedule or next(iter(schedules), None)
        self._position = (
            None if schedule is None else self._scheduler.prepare(schedule, self._measured)
        )

    def apply(self, ratios: Mapping[str, SquareRatio], *, same_size: bool) -> None:
        """Replace the parameters' states. Frame sizes are valid for the same world size only.

        So are ratios of squares, which ranks with the same share take from one of them. With
        another size, each is the one that its second moment was made with.
        """
        if self._position is not None:
            self._scheduler.take(self._position)
        for name, parameter in self._parameters.items():
            parameter.state = self.states[name]
            ratio = ratios.get(name)
            parameter.rate = None  # of the next pass, which the state has to learn
            parameter.use_ratio(ratio if same_size or ratio is None else ratio.taken_over())
            parameter.limit.reset()
            if name in self.sizes:
                parameter.limit.load(self.sizes[name])
