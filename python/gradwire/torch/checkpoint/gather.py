"""Gathers the checkpoints of all ranks, and reads those of another world size."""

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import torch

from gradwire.torch.checkpoint.load import Policy, Saved
from gradwire.torch.engine.parameter import BUFFERS
from gradwire.torch.transport import Channel

__all__ = ["Resharded", "gather"]


def gather(saved: Saved, channel: Channel, to: int | None) -> dict[str, Any]:
    """Gather the checkpoints of all ranks, tensor by tensor; empty on ranks that do not receive.

    Parameters
    ----------
    saved : mapping
        This rank's checkpoint.
    channel : Channel
    to : int or None
        The receiving rank; None for all ranks.
    """
    rank, size = channel.rank, channel.size
    mine = saved[f"rank{rank}"]
    kinds = [kind for kind in mine if kind in BUFFERS]  # every rank has these
    shapes = {name: values.shape for kind in kinds for name, values in mine[kind].items()}
    sums = {name: values.shape for name, values in sorted(mine["measured"].items())}
    texts = [
        (about, _sizes(sums), _sizes(shapes))
        for about, sums, shapes in channel.all_gather_object((mine["about"], sums, shapes))
    ]
    wanted = to is None or rank == to
    everything: dict[str, Any] = {
        f"rank{each}": {"about": text, **{kind: {} for kind in kinds}, "measured": {}}
        for each, (text, *_) in enumerate(texts)
    }
    for kind in kinds:
        for name, values in mine[kind].items():
            # The shares of the ranks of a node may differ by a row.
            theirs = [shape[name] for _, _, shape in texts]
            longest = max(shape.numel() for shape in theirs)
            flat = torch.cat([values.flatten(), values.new_zeros(longest - values.numel())])
            if to is None:
                every = values.new_empty(size * longest)
                channel.all_gather(every, flat).wait()
                parts = list(every.view(size, longest))
            else:
                parts = channel.gather(flat, to)
            for each, part in enumerate(parts):
                found = part[: theirs[each].numel()].view(theirs[each]).clone()
                everything[f"rank{each}"][kind][name] = found
    for holder, (_, sums, _) in enumerate(texts):
        for name, shape in sums.items():
            values = mine["measured"][name] if holder == rank else None
            if to != holder:
                if values is None:
                    values = torch.empty(shape, dtype=torch.float32, device="cpu")
                channel.broadcast(values, holder).wait()
            everything[f"rank{holder}"]["measured"][name] = values
    return everything if wanted else {}


def _sizes(told: Mapping[str, Sequence[int]]) -> dict[str, torch.Size]:
    return {name: torch.Size(shape) for name, shape in told.items()}


class _Checkpointed(Protocol):
    """What the checkpoint of another world size is loaded into: a handle."""

    rank: int

    def shapes_of(self, share: int, shares: int) -> dict[str, tuple[int, ...]]: ...

    def state_dict(self) -> dict[str, Any]: ...

    def load_state_dict(self, state_dict: Mapping[str, Any], policy: Policy) -> None: ...


class Resharded:
    """Loads a checkpoint of another world size; made by `Handle.resharded`.

    `torch.distributed.checkpoint` reads only requested keys, into existing tensors: this requests
    what the policy needs from the old ranks.
    """

    def __init__(
        self, handle: _Checkpointed, world_size: int, policy: Policy, shares: int, same: bool
    ) -> None:
        self._handle = handle
        self._policy = policy
        self._world_size = world_size
        self._shares = shares
        self._same = same

    def state_dict(self) -> dict[str, Any]:
        """Return what to read: checkpoints of old ranks, filled with zeros."""
        own, shares = self._handle.rank, self._shares
        if self._policy == "sum-and-split":
            ranks = list(range(self._world_size))
        elif self._same:
            ranks = [own if self._policy == "keep" and own < self._world_size else own % shares]
        else:  # whatever the node keeps is divided anew
            ranks = list(range(self._world_size if self._policy == "keep" else shares))
        (mine,) = self._handle.state_dict().values()
        shapes = [self._handle.shapes_of(share, shares) for share in range(shares)]
        # Only ranks of the first node have sums of gradients, and only those restore them.
        measured = [own] if self._same else range(shares)
        return {
            f"rank{old}": {
                kind: {name: values[name].new_zeros(shapes[old % shares][name]) for name in values}
                if isinstance(values, Mapping) and (kind != "measured" or old in measured)
                else {}
                for kind, values in mine.items()
                if kind != "about"
            }
            | {"about": ""}
            for old in ranks
        }

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Restore what was read, by `Handle.load_state_dict`. A collective."""
        self._handle.load_state_dict(state_dict, self._policy)
