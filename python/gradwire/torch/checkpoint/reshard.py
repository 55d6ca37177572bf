"""Checkpoints of one grid of ranks, nodes times the shares of each, for another grid.

Residuals are still to be sent, so their sum over all ranks is conserved. Moments estimate the
gradients that a rank will see, so new ranks start from the average of the old ones.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np
import torch

from gradwire.torch.checkpoint.format import Entry, RankState, check_names
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
    shares = {each.shares for each in saved.values()}
    if len(shares) > 1:
        raise ValueError(f"the state_dicts come from runs with {sorted(shares)} ranks per node")
    (old,) = shares
    if old != place.shares:
        return _divided_anew(list(saved.values()), parameters, old, place)
    found = {each.node: _at_node(each) for each in saved.values() if each.share == place.share}
    if not found:
        raise ValueError(
            f"this is rank {place.rank}, with share {place.share} of {place.shares} in its node; "
            f"got the state_dict of rank {', '.join(map(str, saved))}, with other shares: every "
            "rank has its own residual; save and load all of them"
        )
    return found


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
    found = {}
    for node in sorted({each.node for each in saved}):
        parts = sorted((each for each in saved if each.node == node), key=lambda each: each.share)
        if len(parts) < old:
            raise ValueError(
                f"the state_dicts were saved by {old} ranks per node: resharding needs the states "
                f"of all of them, got {len(parts)} of node {node}"
            )
        for each in parts:
            check_names(each, parameters)
        entries = {
            name: _joined([each.entries[name] for each in parts], parameter, place.shares)
            for name, parameter in parameters.items()
        }
        measured = {
            name: parameter.own(_whole([each.measured[name] for each in parts]))
            for name, parameter in parameters.items()
            if all(name in each.measured for each in parts)
        }
        found[node] = replace(_at_node(parts[0]), entries=entries, measured=measured)
    return found


def _whole(parts: Sequence[torch.Tensor]) -> torch.Tensor:
    """Return the shares of all ranks of a node, joined."""
    there = [each for each in parts if each.numel()] or parts[:1]
    return torch.cat(list(there)) if len(there) > 1 else there[0]


def _joined(parts: Sequence[Entry], parameter: ParameterSlot, shares: int) -> Entry:
    """Return the entry of a parameter from those of all shares, cut to this rank's share."""
    numel = parameter.numel
    buffers = {}
    for kind in BUFFERS:
        if all(kind in each.buffers for each in parts):
            whole = _whole([each.buffers[kind] for each in parts])
            if kind == "residual":  # of the mean over a node: what is to be sent is kept in sum
                whole = (whole.float() * (len(parts) / shares)).to(whole.dtype)
            buffers[kind] = parameter.own(whole)
    return replace(parts[0], state=parts[0].state | {"numel": numel}, buffers=buffers)


def split(entries: Sequence[Entry], kind: str, ranks: int) -> torch.Tensor:
    """Return one new rank's part of a residual, or the mean of a moment.

    The entries are those of all old ranks, and the kind is one of `BUFFERS`.
    """
    if any(each.buffers.keys() != entries[0].buffers.keys() for each in entries):
        raise ValueError("some ranks have a residual or moment for a parameter, others do not")
    total = np.zeros(entries[0].buffers[kind].shape, np.float64)
    for each in entries:
        total += each.buffers[kind].float().numpy()
    parts = ranks if kind == "residual" else len(entries)
    return torch.from_numpy(np.asarray(total / parts, np.float32))
