"""Combines the checkpoints of all ranks: gathers them, or sums their residuals."""

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

import torch

from gradwire.torch.checkpoint.format import ALWAYS, RankState, check_parameters, unpack
from gradwire.torch.engine.parameter import BUFFERS
from gradwire.torch.transport import Channel

T = TypeVar("T")


def run_on_all(channel: Channel, act: Callable[[], T], verb: str) -> list[T]:
    """Call a function on every rank and return all results. If it raises on one, all raise.

    ``verb`` names its effect on a ``state_dict``, for the message of the ValueError.
    """
    raised: BaseException | None = None
    mine: tuple[str | None, Any] = (None, None)
    try:
        mine = (None, act())
    except BaseException as error:  # of any kind: the other ranks wait for the answer
        raised = error
        plain = type(error) in (ValueError, TypeError)  # what is raised is a ValueError, too
        mine = (str(error) if plain else f"{type(error).__name__}: {error}", None)
    answers = channel.all_gather_object(mine)
    if raised is not None and not isinstance(raised, Exception):
        raise raised
    for rank, (text, _) in enumerate(answers):
        if text is not None:
            raise ValueError(f"rank {rank} cannot {verb} its state_dict: {text}") from raised
    return [answer for _, answer in answers]


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
        f"rank{rank}": {"about": text, **{kind: {} for kind in kinds}, "measured": {}}
        for rank, (text, *_) in enumerate(texts)
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
            for sender, (part, shape) in enumerate(zip(parts, theirs, strict=False)):
                everything[f"rank{sender}"][kind][name] = part[: shape.numel()].view(shape).clone()
    for holder, (_, sums, _) in enumerate(texts):
        for name, shape in sums.items():
            values = mine["measured"][name] if holder == rank else None
            if to != holder:
                if values is None:
                    values = torch.empty(shape, dtype=torch.float32, device="cpu")
                channel.broadcast(values, holder).wait()
            everything[f"rank{holder}"]["measured"][name] = values
    return everything if to is None or rank == to else {}


def _sizes(shapes: Mapping[str, Sequence[int]]) -> dict[str, torch.Size]:
    return {name: torch.Size(shape) for name, shape in shapes.items()}


def merge(
    channel: Channel, mine: Mapping[str, Any] | None, shapes: Mapping[str, tuple[int, ...]]
) -> dict[str, Any]:
    """Return one checkpoint with the sum of all residuals, and the mean of moments and estimates.

    The result is like that of a run with a single rank: `load` with ``sum-and-split`` gives every
    rank of any number its share. The same on all ranks. A rank may have no checkpoint; the result
    is empty if none has one.

    Raises a ValueError if a checkpoint is not one of a rank or of these compressed parameters, or
    if they are of different steps or models.
    """
    read_here: list[RankState] = []

    def read() -> dict[str, Any] | None:
        if not mine:
            return None
        state, *others = unpack(mine).values()
        if others or state.shares > 1:
            raise ValueError(
                f"expected the checkpoint of one rank without a hierarchy, got {sorted(mine)}"
            )
        check_parameters(state, shapes)
        read_here.append(state)
        about = json.loads(mine[f"rank{state.rank}"]["about"]) | {"rank": 0, "world_size": 1}
        kinds = {
            kind: [name for name, entry in state.entries.items() if kind in entry.buffers]
            for kind in BUFFERS
        }
        return {
            "agreed": [state.step, about["codec"], kinds],
            "about": json.dumps(about, sort_keys=True),
            "measured": sorted(state.measured),
        }

    every = [state for state in run_on_all(channel, read, "merge") if state is not None]
    if not every:
        return {}
    first = every[0]
    if any(state["agreed"] != first["agreed"] for state in every):
        raise ValueError("the ranks have checkpoints of different steps or models")
    state = read_here[0] if read_here else None

    def total(name: str, tensor: torch.Tensor | None) -> torch.Tensor:
        sums = torch.zeros(shapes[name], dtype=torch.float64, device="cpu")
        if tensor is not None:
            sums += tensor
        channel.all_reduce(sums).wait()
        return sums

    merged: dict[str, Any] = {"about": first["about"], "measured": {}}
    for kind, names in first["agreed"][2].items():
        if names or kind in ALWAYS:
            merged[kind] = {}
        for name in names:
            tensor = None if state is None else state.entries[name].buffers[kind]
            summed = kind == "residual" and name not in first["agreed"][2]["estimate"]
            ranks = 1 if summed else len(every)
            merged[kind][name] = total(name, tensor).div_(ranks).float()
    for name in sorted({name for state in every for name in state["measured"]}):
        tensor = None if state is None else state.measured.get(name)
        merged["measured"][name] = total(name, tensor).float()
    return {"rank0": merged}
