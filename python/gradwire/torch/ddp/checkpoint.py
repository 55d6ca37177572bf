"""Saving and restoring the state of all parameters, also into another number of ranks."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, get_args

import numpy as np
import torch
import torch.distributed as dist

from gradwire.torch.ddp.agreement import checksum
from gradwire.torch.ddp.layout import Parameter
from gradwire.torch.ddp.parameters import fresh_state
from gradwire.torch.ddp.scheduling import Scheduler

if TYPE_CHECKING:
    from gradwire.codec import Codec
    from gradwire.state import State

__all__ = ["Policy", "load", "save"]

Policy = Literal["sum-and-split", "keep", "drop"]
"""What becomes of residuals when the number of ranks has changed."""

VERSION = 1

Saved = Mapping[str, Any]

_BUFFERS = ("residual", "momentum")
"""What a parameter's state has for each entry, where its codec has it."""


def save(
    parameters: Mapping[str, Parameter],
    codec: "Codec",
    rank: int,
    world_size: int,
    step: int,
    schedule: dict[str, Any],
) -> dict[str, Any]:
    """Return the checkpoint of one rank: plain tensors, numbers and strings."""
    return {
        "version": VERSION,
        "rank": rank,
        "world_size": world_size,
        "step": step,
        "codec": codec.get_config(),
        "schedule": schedule,
        "parameters": {name: _save(parameter) for name, parameter in parameters.items()},
    }


def _save(parameter: Parameter) -> dict[str, Any]:
    saved: dict[str, Any] = parameter.state.state_dict()
    for buffer in _BUFFERS:
        if saved[buffer] is not None:
            saved[buffer] = torch.from_numpy(saved[buffer])
    return {**saved, "sizes": parameter.limit.state()}


def load(
    parameters: Mapping[str, Parameter],
    scheduler: Scheduler,
    group: dist.ProcessGroup,
    saved: Saved | Sequence[Saved] | None,
    policy: Policy,
) -> int:
    """Restore all parameters, or none, on all ranks alike. Returns the step to go on from."""
    try:
        loaded = _Loaded(parameters, group.rank(), group.size(), saved, policy)
        mine: tuple[str | None, Any] = (None, loaded.summary)
    except (ValueError, TypeError, KeyError) as error:
        mine = (f"{type(error).__name__}: {error}", None)
    answers: list[Any] = [None] * group.size()
    dist.all_gather_object(answers, mine, group=group)
    for rank, (error_text, _) in enumerate(answers):
        if error_text is not None:
            raise ValueError(f"rank {rank} cannot load its state_dict: {error_text}")
    known = {rank: summary for rank, (_, summary) in enumerate(answers) if summary is not None}
    if len(set(known.values())) > 1:
        raise ValueError(
            "the ranks were given checkpoints of different runs or steps (world size, step, sizes "
            f"seen, epoch): {known}"
        )
    _restore_schedule(scheduler, loaded, group)
    _share_steps(loaded, group)
    loaded.apply()
    return max((summary[1] for summary in known.values()), default=0)


def _restore_schedule(scheduler: Scheduler, loaded: "_Loaded", group: dist.ProcessGroup) -> None:
    """Go on in the epoch that was saved; a rank that was given nothing hears of it from another."""
    every: list[Any] = [None] * group.size()
    dist.all_gather_object(every, loaded.schedule, group=group)
    # Rank 0's has the sums of gradients; another rank's is as good for all else.
    saved = loaded.schedule or next((each for each in every if each is not None), None)
    if saved is not None:
        scheduler.load(saved)


def _share_steps(loaded: "_Loaded", group: dist.ProcessGroup) -> None:
    """Let states without a past count their steps as all others do.

    What ranks draw from a seed that they share depends on it.
    """
    mine = {name: state.step for name, state in loaded.states.items()}
    every: list[Any] = [None] * group.size()
    dist.all_gather_object(every, mine, group=group)
    for name, state in loaded.states.items():
        step = max(theirs[name] for theirs in every)
        if state.step != step:
            state.load_state_dict({**state.state_dict(), "step": step})


class _Loaded:
    """New states, made and checked before any old one is given up.

    Attributes
    ----------
    summary : tuple or None
        What must be the same on all ranks; None for a rank that was given nothing.
    """

    def __init__(
        self,
        parameters: Mapping[str, Parameter],
        rank: int,
        world_size: int,
        saved: Saved | Sequence[Saved] | None,
        policy: Policy,
    ) -> None:
        if policy not in get_args(Policy):
            raise ValueError(f"policy must be one of {get_args(Policy)}, got {policy!r}")
        self._parameters = parameters
        self._rank = rank
        self.schedule: Saved | None = None
        self.states: dict[str, State] = {}
        self.sizes: dict[str, list[int]] = {}
        self.summary: tuple[int, int, int, int] | None = None
        by_rank = _by_rank(saved)
        if not by_rank:
            if policy == "sum-and-split":
                raise ValueError('got no state_dict; only policy "keep" or "drop" may go without')
            self._fresh()
            return
        for one in by_rank.values():
            _check(one, parameters)
        first = next(iter(by_rank.values()))
        old_size = int(first["world_size"])
        if any(
            (one["world_size"], one["step"]) != (old_size, first["step"])
            for one in by_rank.values()
        ):
            raise ValueError("the state_dicts are of different runs or steps")
        if old_size == world_size:
            self._same_size(by_rank, rank)
        else:
            self._other_size(by_rank, rank, world_size, old_size, policy)
        epoch = 0
        # Of before there were schedules there is none; rank 0's has the sums of gradients.
        own = by_rank.get(rank, first)
        self.schedule = by_rank.get(0, own).get("schedule") if rank == 0 else own.get("schedule")
        if self.schedule is not None:
            epoch = Scheduler.check(self.schedule, parameters)
        self.summary = (old_size, int(first["step"]), checksum(sorted(self.sizes.items())), epoch)

    def _fresh(self) -> None:
        for name, parameter in self._parameters.items():
            self.states[name] = fresh_state(parameter, self._rank)

    def _same_size(self, by_rank: Mapping[int, Saved], rank: int) -> None:
        if rank not in by_rank:
            raise ValueError(
                f"this is rank {rank}, got the state_dict of rank {', '.join(map(str, by_rank))}: "
                "every rank has a residual of its own, save and load all of them"
            )
        for name, entry in by_rank[rank]["parameters"].items():
            self._restore(name, entry)
            self.sizes[name] = entry["sizes"]

    def _other_size(
        self,
        by_rank: Mapping[int, Saved],
        rank: int,
        world_size: int,
        old_size: int,
        policy: Policy,
    ) -> None:
        self._fresh()
        if policy == "drop":
            return
        if policy == "keep":
            if rank < old_size and rank not in by_rank:
                raise ValueError(
                    f'policy "keep" needs the state_dict of rank {rank} on rank {rank}'
                )
            own = by_rank.get(rank)
            for name, entry in own["parameters"].items() if own else ():
                self._restore(name, entry)
            return
        missing = [str(old) for old in range(old_size) if old not in by_rank]
        if missing:
            raise ValueError(
                f"the world had {old_size} ranks and has {world_size}: policy {policy!r} needs the "
                f"state_dicts of all {old_size} as a list on every rank, missing "
                f"{', '.join(missing)}; or name another policy"
            )
        for name in self._parameters:
            entries = [by_rank[old]["parameters"][name] for old in range(old_size)]
            own = entries[rank % old_size]
            # Residuals wait to be sent: nothing of their sum may be lost. Momentum stands for the
            # gradients that a rank is going to see: new ranks start from the average of the old.
            residual = _spread(entries, "residual", world_size)
            momentum = _spread(entries, "momentum", old_size)
            self._restore(name, {**own, "residual": residual, "momentum": momentum})

    def _restore(self, name: str, entry: Saved) -> None:
        state = fresh_state(self._parameters[name], self._rank)
        plain = {key: value for key, value in entry.items() if key != "sizes"}
        for buffer in _BUFFERS:
            saved = plain.get(buffer)  # before there was momentum, there was no entry for it
            plain[buffer] = None if saved is None else saved.numpy()
        state.load_state_dict(plain)
        self.states[name] = state

    def apply(self) -> None:
        """Replace the parameters' states. Sizes seen count for the same world only."""
        for name, parameter in self._parameters.items():
            parameter.state = self.states[name]
            parameter.limit.reset()
            if name in self.sizes:
                parameter.limit.load(self.sizes[name])


def _by_rank(saved: Saved | Sequence[Saved] | None) -> dict[int, Saved]:
    if saved is None:
        return {}
    if isinstance(saved, Mapping):
        saved = [saved]
    by_rank: dict[int, Saved] = {}
    for one in saved:
        if not isinstance(one, Mapping) or one.get("version") != VERSION:
            raise ValueError(f"expected what Handle.state_dict() returned, version {VERSION}")
        if one["rank"] in by_rank:
            raise ValueError(f"got two state_dicts of rank {one['rank']}")
        by_rank[int(one["rank"])] = one
    return by_rank


def _check(saved: Saved, parameters: Mapping[str, Parameter]) -> None:
    theirs = saved["parameters"]
    missing, unknown = parameters.keys() - theirs.keys(), theirs.keys() - parameters.keys()
    if missing or unknown:
        raise ValueError(
            f"the state_dict is of another model or other options: it lacks {sorted(missing)} and "
            f"has {sorted(unknown)} besides"
        )


def _spread(entries: Sequence[Saved], buffer: str, ranks: int) -> torch.Tensor | None:
    """Return the sum of a buffer over all saved ranks, an equal part for each of so many ranks."""
    if entries[0].get(buffer) is None:
        return None
    total = np.zeros(entries[0]["numel"], np.float64)
    for entry in entries:
        total += entry[buffer].numpy()
    return torch.from_numpy((total / ranks).astype(np.float32))
