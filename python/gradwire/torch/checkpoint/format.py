"""The format of a checkpoint, and its validation when it is read."""

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

import torch

from gradwire import _validate
from gradwire.torch.engine.parameter import BUFFERS
from gradwire.torch.engine.square_ratio import SquareRatio

Policy = Literal["sum-and-split", "keep", "drop", "own"]
"""What to do with residuals if the number of ranks has changed."""

VERSION = 2
_MOST = 2**53
ALWAYS = ("residual", "momentum")  # kinds of tensors that are saved even if there are none
_EXPECTED = "expected what Handle.state_dict() or gathered_state_dict() returned"


@dataclass(frozen=True, slots=True)
class Entry:
    """The state of one parameter on one rank.

    The buffers are those of `BUFFERS` that the codec has: float32, of the parameter's shape;
    bfloat16 for those kept in bfloat16.
    """

    state: dict[str, Any]  # what `State.state_dict` returned, without its arrays
    sizes: list[int]  # what `SizeLimit.state` returned
    buffers: dict[str, torch.Tensor]
    ratio: SquareRatio | None = None


@dataclass(frozen=True, slots=True)
class RankState:
    """Everything that one rank saves.

    The measured sums are of the parameters' shapes. The rank owns one of ``shares`` shares of every
    parameter in its node.
    """

    rank: int
    world_size: int
    step: int
    schedule: dict[str, Any]
    entries: dict[str, Entry]
    measured: dict[str, torch.Tensor]
    node: int
    share: int = 0
    shares: int = 1


def pack(state: RankState, codec: Any) -> dict[str, Any]:
    """Return tensors by name, and one text for everything else, under the name of the rank.

    Frameworks that save the states of all ranks take equal keys for replicas, and can load only
    keys that existed when they saved. So keys contain the rank, and none depends on the progress of
    training.
    """
    about: dict[str, Any] = {
        "version": VERSION,
        "rank": state.rank,
        "world_size": state.world_size,
        "step": state.step,
        "codec": codec,
        "schedule": state.schedule,
        "parameters": {
            name: {"state": entry.state, "sizes": entry.sizes}
            | ({} if entry.ratio is None else {"ratio": list(entry.ratio)})
            for name, entry in state.entries.items()
        },
    }
    if state.shares > 1:
        about |= {"node": state.node, "share": state.share, "shares": state.shares}
    tensors = {
        kind: {
            name: entry.buffers[kind]
            for name, entry in state.entries.items()
            if kind in entry.buffers
        }
        for kind in BUFFERS
    }
    tensors = {kind: values for kind, values in tensors.items() if values or kind in ALWAYS}
    packed = {"about": json.dumps(about, sort_keys=True), **tensors, "measured": state.measured}
    return {f"rank{state.rank}": packed}


def unpack(saved: object) -> dict[int, RankState]:
    """Return the states in a dict or a sequence of dicts, by rank; for None, an empty dict.

    Raises an error of any kind for anything else, and if a dict is damaged: call it within
    `run_on_all`, which makes it a ValueError of all ranks.
    """
    if saved is None:
        return {}
    dicts = saved if isinstance(saved, list | tuple) else [saved]
    by_rank: dict[int, RankState] = {}
    for one in dicts:
        if not isinstance(one, Mapping):
            raise TypeError(f"{_EXPECTED}, or a list of these, got a {type(one).__name__}")
        for key, packed in one.items():
            if not re.fullmatch(r"rank\d{1,9}", str(key), re.ASCII):
                raise ValueError(f"{_EXPECTED}, version {VERSION}, got a dict with the key {key!r}")
            state = _unpack(packed, key)
            if state.rank in by_rank:
                raise ValueError(f"got two state_dicts of rank {state.rank}")
            by_rank[state.rank] = state
    return by_rank


def check_names(saved: RankState, names: Iterable[str]) -> None:
    """Raise a ValueError if a state has other parameters than these."""
    missing, unknown = set(names) - saved.entries.keys(), saved.entries.keys() - set(names)
    if missing or unknown:
        raise ValueError(
            f"the state_dict comes from another model or other options: it lacks "
            f"{sorted(missing)} and has the extra parameters {sorted(unknown)}"
        )


def check_parameters(saved: RankState, shapes: Mapping[str, tuple[int, ...]]) -> None:
    """Raise a ValueError if a state has other parameters than these, or other shapes."""
    check_names(saved, shapes)
    buffers = [
        (name, tensor) for name, entry in saved.entries.items() for tensor in entry.buffers.values()
    ]
    for name, values in (*buffers, *saved.measured.items()):
        if tuple(values.shape) != shapes[name]:
            raise ValueError(
                f"the state_dict has a tensor of shape {tuple(values.shape)} for {name!r}, "
                f"which has shape {shapes[name]}"
            )


def _unpack(packed: Any, key: str) -> RankState:
    """Read one rank's state, which fails with an error of any kind if it has another form."""
    about = json.loads(packed["about"])
    if about["version"] != VERSION:
        raise ValueError(f"{key} has version {about['version']!r}, expected {VERSION}")
    world_size = _integer(key, about, "world_size", low=1)
    rank = _integer(key, about, "rank", low=0)
    if f"rank{rank}" != key or rank >= world_size:
        raise ValueError(f"{key} holds the state of rank {rank} of {world_size}")
    shares, share, node = 1, 0, rank
    if "shares" in about:
        shares = _integer(key, about, "shares", low=1)
        share = _integer(key, about, "share", low=0)
        node = _integer(key, about, "node", low=0)
        if share >= shares or world_size % shares or node >= world_size // shares:
            raise ValueError(
                f"{key} has share {share} of {shares} in node {node}, of {world_size} ranks"
            )
    tensors = {
        kind: _tensors(f"{key}.{kind}", kind, packed.get(kind, {}))
        for kind in (*BUFFERS, "measured")
    }
    parameters = dict(about["parameters"])
    for kind, values in tensors.items():
        if unknown := values.keys() - parameters.keys():
            raise ValueError(f"{key}.{kind} has unknown parameters: {sorted(unknown)}")
    return RankState(
        rank=rank,
        world_size=world_size,
        step=_integer(key, about, "step", low=0),
        schedule=dict(about["schedule"]),
        entries={
            name: _entry(f"{key}.{name}", entry, tensors, name)
            for name, entry in parameters.items()
        },
        measured=tensors["measured"],
        node=node,
        share=share,
        shares=shares,
    )


def _entry(
    what: str,
    entry: Any,
    tensors: Mapping[str, Mapping[str, torch.Tensor]],
    name: str,
) -> Entry:
    ratio, sizes = entry.get("ratio"), list(entry["sizes"])
    for low, size in zip((-1, 0), sizes, strict=True):
        _validate.integer(f"{what}: sizes", size, low=low, high=_MOST)
    return Entry(
        state=dict(entry["state"]),
        sizes=sizes,
        buffers={kind: tensors[kind][name] for kind in BUFFERS if name in tensors[kind]},
        ratio=None if ratio is None else SquareRatio.read(f"{what}: ratio", ratio),
    )


def _tensors(what: str, kind: str, tensors: Mapping[str, Any]) -> dict[str, torch.Tensor]:
    rounds = kind in ("residual", "second_moment")
    allowed = [torch.float32, torch.bfloat16] if rounds else [torch.float32]
    for name, tensor in tensors.items():
        if tensor.layout != torch.strided or tensor.dtype not in allowed:
            raise TypeError(
                f"{what}.{name} must be a dense tensor of {' or '.join(map(str, allowed))}, got "
                f"{tensor.layout} of {tensor.dtype}"
            )
    return {name: tensor.detach().cpu() for name, tensor in tensors.items()}


def _integer(key: str, about: Mapping[str, Any], name: str, *, low: int) -> int:
    return _validate.integer(f"{key}: {name}", about[name], low=low, high=_MOST)
