"""Checkpoints of one grid of ranks, nodes times the shares of each, for another grid.

Residuals are still to be sent, so their sum over all ranks is conserved. Moments estimate the
gradients that a rank will see, so new ranks start from the average of the old ones. So do
estimates, the mean of which all ranks have.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch

from gradwire.torch.checkpoint.format import Entry, Policy, RankState, check_names
from gradwire.torch.engine.parameter import BUFFERS, ParameterSlot
from gradwire.torch.transport import RankTopology


def of_this_share(
    saved: Mapping[int, RankState], parameters: Mapping[str, ParameterSlot], place: RankTopology
) -> dict[int, RankState]:
    """Return the states of a rank's share, by node, as if each node were one rank.

    If nodes had another number of ranks, the shares of each node are joined and divided again.
    Raises a ValueError if the states come from runs with different numbers of ranks per node, or
    this share is not among them.
    """
    if not saved:
        return {}
    shares = {state.shares for state in saved.values()}
    if len(shares) > 1:
        raise ValueError(f"the state_dicts come from runs with {sorted(shares)} ranks per node")
    (old,) = shares
    if old != place.shares:
        return _divided_anew(list(saved.values()), parameters, old, place)
    nodes = {state.node: _at_node(state) for state in saved.values() if state.share == place.share}
    if not nodes:
        raise ValueError(
            f"this is rank {place.rank}, with share {place.share} of {place.shares} in its node; "
            f"got the state_dict of rank {', '.join(map(str, saved))}, with other shares: every "
            "rank has its own residual; save and load all of them"
        )
    return nodes


def _at_node(state: RankState) -> RankState:
    if state.shares == 1:
        return state
    return replace(state, rank=state.node, world_size=state.world_size // state.shares)


def _divided_anew(
    saved: Sequence[RankState],
    parameters: Mapping[str, ParameterSlot],
    old: int,
    place: RankTopology,
) -> dict[int, RankState]:
    """Return the states of all nodes, of which each has what belongs to this rank's share."""
    divided = {}
    for node in sorted({state.node for state in saved}):
        parts = sorted(
            (state for state in saved if state.node == node), key=lambda state: state.share
        )
        if len(parts) < old:
            raise ValueError(
                f"the state_dicts were saved by {old} ranks per node: resharding needs the states "
                f"of all of them, got {len(parts)} of node {node}"
            )
        for state in parts:
            check_names(state, parameters)
        entries = {
            name: _joined([state.entries[name] for state in parts], parameter, place.shares)
            for name, parameter in parameters.items()
        }
        measured = {
            name: parameter.own(_whole([state.measured[name] for state in parts]))
            for name, parameter in parameters.items()
            if all(name in state.measured for state in parts)
        }
        divided[node] = replace(_at_node(parts[0]), entries=entries, measured=measured)
    return divided


def _whole(parts: Sequence[torch.Tensor]) -> torch.Tensor:
    there = [part for part in parts if part.numel()] or parts[:1]
    return torch.cat(list(there)) if len(there) > 1 else there[0]


def _joined(parts: Sequence[Entry], parameter: ParameterSlot, shares: int) -> Entry:
    """Return the entry of a parameter from those of all shares, cut to this rank's share."""
    numel = parameter.numel
    buffers = {}
    for kind in BUFFERS:
        if all(kind in part.buffers for part in parts):
            whole = _whole([part.buffers[kind] for part in parts])
            if is_summed(kind, parts[0]):  # of the mean over a node: kept in sum
                whole = (whole.float() * (len(parts) / shares)).to(whole.dtype)
            buffers[kind] = parameter.own(whole)
    return replace(parts[0], state=parts[0].state | {"numel": numel}, buffers=buffers)


def split(entries: Sequence[Entry], kind: str, ranks: int) -> torch.Tensor:
    """Return one new rank's part of a residual, or the mean of a moment.

    The entries are those of all old ranks, and the kind is one of `BUFFERS`.
    """
    if any(entry.buffers.keys() != entries[0].buffers.keys() for entry in entries):
        raise ValueError("some ranks have a residual or moment for a parameter, others do not")
    total = np.zeros(entries[0].buffers[kind].shape, np.float64)
    for entry in entries:
        total += entry.buffers[kind].float().numpy()
    parts = ranks if is_summed(kind, entries[0]) else len(entries)
    return torch.from_numpy(np.asarray(total / parts, np.float32))


def is_summed(kind: str, entry: Entry) -> bool:
    """Tell whether buffers of this kind are still to be sent, and not what ranks have in common."""
    return kind == "residual" and "estimate" not in entry.buffers


class Resharded:
    """Loads a checkpoint of another world size; made by `Handle.resharded`.

    `torch.distributed.checkpoint` reads only requested keys, into existing tensors: this class
    requests the keys of the old ranks that the policy needs.
    """

    def __init__(self, handle: Any, world_size: int, policy: Policy, shares: int) -> None:
        self._handle = handle
        self._policy = policy
        self._world_size = world_size
        self._shares = shares
        self._same = shares == handle.ranks_per_node

    def state_dict(self) -> dict[str, Any]:
        """Return the dict to load into: checkpoints of the old ranks, filled with zeros."""
        rank, shares = self._handle.rank, self._shares
        if self._policy == "sum-and-split":
            ranks = list(range(self._world_size))
        elif self._same:
            ranks = [rank if self._policy == "keep" and rank < self._world_size else rank % shares]
        else:  # the node's states are divided again
            ranks = list(range(self._world_size if self._policy == "keep" else shares))
        (mine,) = self._handle.state_dict().values()
        shapes = [self._handle.shapes_of(share, shares) for share in range(shares)]
        # Only ranks of the first node have sums of gradients, and only those restore them.
        measured = [rank] if self._same else range(shares)
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
        """Restore the loaded values with `Handle.load_state_dict`. A collective."""
        self._handle.load_state_dict(state_dict, self._policy)
