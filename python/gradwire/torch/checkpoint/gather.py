"""Combines the checkpoints of all ranks: gathers them, or sums their residuals."""

import json
from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import Any

import torch

from gradwire.torch.checkpoint.format import ALWAYS, unpack
from gradwire.torch.engine.consensus import run_on_all
from gradwire.torch.engine.parameter import BUFFERS
from gradwire.torch.engine.sharding import shard_of
from gradwire.torch.engine.square_ratio import SquareRatio
from gradwire.torch.transport import Channel

_OF_A_SHARE = ("node", "share", "shares")  # what a checkpoint says of its place in a hierarchy


def gather(saved: Mapping[str, Any], channel: Channel, to: int | None) -> dict[str, Any]:
    """Gather the checkpoints of all ranks, tensor by tensor, on one rank; on all of them for None.

    Empty on ranks that do not receive.
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
    return everything if to is None or rank == to else {}


def _sizes(told: Mapping[str, Sequence[int]]) -> dict[str, torch.Size]:
    return {name: torch.Size(shape) for name, shape in told.items()}


def merge(
    channel: Channel, mine: Mapping[str, Any] | None, tensors: Mapping[str, torch.Tensor]
) -> dict[str, Any]:
    """Return one checkpoint with the sum of all residuals, and the mean of all moments.

    The result is like that of a run with a single rank: `load` with ``sum-and-split`` gives every
    rank of any number its share. The same on all ranks. The shares of a node are put together; they
    are of its mean gradient, so that its residual counts once for each of its ranks. A rank may
    have no checkpoint; the result is empty if none has one.

    Raises a ValueError if a checkpoint is not one of a rank or of these compressed parameters, if
    they are of different steps or models, or if shares of them are missing.
    """
    read_here: list[_RankCheckpoint | None] = []

    def read() -> dict[str, Any] | None:
        read_here.append(_RankCheckpoint(mine, tensors) if mine else None)
        return None if read_here[0] is None else read_here[0].facts()

    every: list[Any] = run_on_all(channel, read, "merge")
    (saved,) = read_here
    given = [rank for rank, facts in enumerate(every) if facts is not None]
    if not given:
        return {}
    first = every[given[0]]
    for rank in given:
        if every[rank]["agreed"] != first["agreed"]:
            raise ValueError(
                f"ranks {given[0]} and {rank} have checkpoints of different steps or models"
            )
    shares, kinds = first["agreed"]["shares"], first["agreed"]["kinds"]
    counts = [sum(every[rank]["share"] == share for rank in given) for share in range(shares)]
    if 0 in counts:
        missing = [share for share, count in enumerate(counts) if not count]
        raise ValueError(
            f"of the {shares} shares that the ranks of a node have, no rank has a checkpoint of "
            f"{', '.join(map(str, missing))}"
        )
    holder_of = [
        next(rank for rank in given if every[rank]["share"] == share) for share in range(shares)
    ]
    abouts = [json.loads(every[rank]["about"]) for rank in holder_of]
    for name, parameter in abouts[0]["parameters"].items():
        ratios = [each["parameters"][name].pop("ratio", None) for each in abouts]
        if None not in ratios:
            parameter["ratio"] = _mean_ratio(ratios)
    merged: dict[str, Any] = {"about": json.dumps(abouts[0], sort_keys=True), "measured": {}}
    for kind, names in kinds.items():
        merged[kind] = {}
        for name in names:
            total = torch.zeros(tensors[name].shape, dtype=torch.float64, device="cpu")
            if saved is not None:
                saved.add(name, saved.state.entries[name].buffers[kind], total)
            channel.all_reduce(total).wait()
            if kind == "residual":
                total *= shares
            else:
                for share, count in enumerate(counts):
                    shard_of(name, tensors[name], share, shares).of(total).div_(count)
            merged[kind][name] = total.float()
    holders = [rank for rank in given if every[rank]["measured"]]
    for name in every[holders[0]]["measured"] if holders else ():
        sums = torch.zeros(tensors[name].shape, dtype=torch.float32, device="cpu")
        if saved is not None and channel.rank in holders:
            saved.add(name, saved.state.measured[name], sums)
        channel.all_reduce(sums).wait()
        merged["measured"][name] = sums
    return {"rank0": merged}


def _mean_ratio(ratios: Sequence[Sequence[Any]]) -> list[Any]:
    """Return the ratio of squares of a parameter from those of its shares, which are as large.

    Shares with 0.5 after 16 measurements and 0.3 after 10 have 0.4 after 10.
    """
    every = [SquareRatio.read("ratio", each) for each in ratios]
    pending = any(each.made_with is not None for each in every)
    return [
        fmean(each.mean for each in every),
        min(each.measurements for each in every),
        fmean(each.factor for each in every) if pending else None,
    ]


class _RankCheckpoint:
    """The checkpoint of this rank, with the part of each parameter that it covers."""

    def __init__(self, mine: Mapping[str, Any], tensors: Mapping[str, torch.Tensor]) -> None:
        by_rank = unpack(mine)
        if len(by_rank) != 1:
            raise ValueError(f"expected the checkpoint of one rank, got those of {sorted(mine)}")
        (self.state,) = by_rank.values()
        (packed,) = mine.values()
        self._about: dict[str, Any] = json.loads(packed["about"])
        state, entries = self.state, self.state.entries
        if other := sorted(entries.keys() ^ tensors.keys()):
            raise ValueError(f"the state_dict comes from another model or other options: {other}")
        if state.shares > 1:
            for name, each in tensors.items():
                self._about["parameters"][name]["state"]["numel"] = each.numel()
        self._parts = {
            name: shard_of(name, each, state.share, state.shares) for name, each in tensors.items()
        }
        kept = [(name, each) for name, entry in entries.items() for each in entry.buffers.values()]
        for name, values in (*kept, *state.measured.items()):
            part = self._parts[name]
            if tuple(values.shape) != part.shape and values.numel() + part.numel:
                raise ValueError(
                    f"the state_dict has a tensor of shape {tuple(values.shape)} for {name!r}, "
                    f"expected {part.shape}: only tensors that are sharded by rows can be merged"
                )

    def facts(self) -> dict[str, Any]:
        """Return the facts that other ranks need, without tensors."""
        state = self.state
        kinds = {
            kind: [name for name, entry in state.entries.items() if kind in entry.buffers]
            for kind in BUFFERS
        }
        about = {key: each for key, each in self._about.items() if key not in _OF_A_SHARE}
        agreed = {
            "step": state.step,
            "codec": about["codec"],
            "kinds": {kind: names for kind, names in kinds.items() if names or kind in ALWAYS},
            "shares": state.shares,
        }
        return {
            "agreed": agreed,
            "share": state.share,
            "about": json.dumps({**about, "rank": 0, "world_size": 1}, sort_keys=True),
            "measured": sorted(state.measured),
        }

    def add(self, name: str, values: torch.Tensor, total: torch.Tensor) -> None:
        """Add values of this rank's share to a tensor of the parameter's shape."""
        if values.numel():
            self._parts[name].of(total).add_(values)
