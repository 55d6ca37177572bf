"""Merges the checkpoints of all ranks into one, for another number of ranks."""

import json
from collections.abc import Mapping
from typing import Any

import torch

from gradwire.torch.reducer.agreement import together
from gradwire.torch.reducer.order import BUFFERS
from gradwire.torch.reducer.saved import unpack
from gradwire.torch.transport import Channel

__all__ = ["merge"]


def merge(channel: Channel, mine: Mapping[str, Any] | None) -> dict[str, Any]:
    """Return one checkpoint with the sum of all residuals, and the mean of all moments.

    It is that of the only rank of a run of one: `load` with ``sum-and-split`` gives every rank of
    any number its share. The same on all ranks.

    Parameters
    ----------
    channel : Channel
    mine : mapping or None
        This rank's checkpoint; None if it has none. An empty result if no rank has one.

    Raises
    ------
    ValueError
        A checkpoint is not one of a rank, or they are of different steps or models.
    """
    own: list[Mapping[str, Any] | None] = []

    def read() -> dict[str, Any] | None:
        own.append(_own(mine))
        return None if own[0] is None else _facts(own[0])

    every: list[Any] = together(channel, read, "merge")
    (saved,) = own
    given = [rank for rank, facts in enumerate(every) if facts is not None]
    if not given:
        return {}
    first = every[given[0]]
    for rank in given:
        if every[rank]["agreed"] != first["agreed"]:
            raise ValueError(
                f"ranks {given[0]} and {rank} have checkpoints of different steps or models"
            )
    merged: dict[str, Any] = {"about": first["about"], "measured": {}}
    for kind, shapes in first["agreed"]["shapes"].items():
        merged[kind] = {}
        for name, shape in shapes.items():
            total = torch.zeros(shape, dtype=torch.float64)
            if saved is not None:
                total += saved[kind][name]
            channel.all_reduce(total).wait()
            merged[kind][name] = (total if kind == "residual" else total / len(given)).float()
    holders = [rank for rank in given if every[rank]["measured"]]
    for name, shape in every[holders[0]]["measured"].items() if holders else ():
        holds = channel.rank == holders[0] and saved is not None
        values = saved["measured"][name].clone() if holds and saved else torch.zeros(shape)
        channel.broadcast(values, holders[0]).wait()
        merged["measured"][name] = values
    return {"rank0": merged}


def _own(mine: Mapping[str, Any] | None) -> Mapping[str, Any] | None:
    if not mine:
        return None
    if len(unpack(mine)) != 1:
        raise ValueError(f"expected the checkpoint of one rank, got those of {sorted(mine)}")
    (saved,) = mine.values()
    found: Mapping[str, Any] = saved
    return found


def _facts(saved: Mapping[str, Any]) -> dict[str, Any]:
    """Return what is needed of each checkpoint, without its tensors."""
    about = json.loads(saved["about"])
    shapes = {
        kind: {name: tuple(each.shape) for name, each in saved[kind].items()}
        for kind in BUFFERS
        if kind in saved
    }
    return {
        "agreed": {"step": about["step"], "codec": about["codec"], "shapes": shapes},
        "about": json.dumps({**about, "rank": 0, "world_size": 1}, sort_keys=True),
        "measured": {name: tuple(each.shape) for name, each in saved["measured"].items()},
    }
