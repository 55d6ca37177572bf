"""Saves and restores DiLoCo: shared parameters, exchanges in progress, and residuals."""

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch

from gradwire import _validate
from gradwire.torch.checkpoint import load as residuals
from gradwire.torch.checkpoint.format import Policy
from gradwire.torch.checkpoint.gather import run_on_all
from gradwire.torch.diloco.exchanges import FragmentExchanges
from gradwire.torch.diloco.replica import FragmentState, Position, Replica, Shared
from gradwire.torch.diloco.untrained import bits_of
from gradwire.torch.transport import RankTopology, messages

VERSION = 1
_KINDS = ("shared", "velocity", "pending", "sent")
_UNTRAINED = ("untrained", "averaged")  # those in use, and those of an exchange to be applied
_COMMON = (*_KINDS[:3], *_UNTRAINED)


def _read(saved: object, replica: Replica, rank: int, world_size: int) -> tuple[Shared, Position]:
    """Read and check the shared state and this rank's sent parameters, or raise.

    The latter is in its own of several checkpoints, if the number of ranks is the same. A single
    one is taken for its own.
    """
    found = {
        name: each
        for one in ([saved] if isinstance(saved, Mapping) else saved or ())  # type: ignore[attr-defined]
        for name, each in (one.items() if isinstance(one, Mapping) else ())
        if isinstance(each, Mapping) and "outer" in each
    }
    if not found:
        raise ValueError("expected what DiLoCo.state_dict() returned, or a list of these")
    mine = found.get(f"rank{rank}") if len(found) == world_size else None
    one = mine or next(iter(found.values()))
    tensors, position = _read_one(one, replica.fragments)
    for kind in _UNTRAINED:
        tensors[kind] = replica.untrained.read(one.get(kind, {}))
    if mine is None and len(found) > 1:
        tensors["sent"] = {}
    return tensors, position


def _read_one(
    saved: Mapping[str, Any], fragments: Sequence[Sequence[FragmentState]]
) -> tuple[Shared, Position]:
    text = saved["outer"]
    if not isinstance(text, str):
        raise TypeError(f"outer must be a str, got {type(text).__name__}")
    about = messages.read(text)
    if not isinstance(about, dict) or about.get("version") != VERSION:
        raise ValueError(f"expected version {VERSION} of DiLoCo's checkpoints, got {about!r}")
    position = {
        name: _validate.integer(name, about.get(name), low=0)
        for name in ("inner_step", "sent", "applied")
    }
    flying = range(position["applied"], position["sent"])
    if position["applied"] > position["sent"] or len(flying) > len(fragments):
        raise ValueError(
            f"the checkpoint has applied {position['applied']} of {position['sent']} exchanges, "
            f"and there are {len(fragments)} fragments: it is damaged, or has other fragments"
        )
    parts = [part for fragment in fragments for part in fragment]
    known = {each.name: each.tensor.shape for part in parts for each in part.records}
    of = {each.name: part for part in parts for each in part.records}
    found: Shared = {}
    for kind in _KINDS:
        tensors = saved.get(kind, {})
        if not isinstance(tensors, Mapping):
            raise TypeError(f"{kind} must be a dict, got {type(tensors).__name__}")
        shapes = {name: getattr(each, "shape", None) for name, each in tensors.items()}
        expected = known
        if kind in ("pending", "sent"):
            expected = {name: shape for name, shape in known.items() if name in shapes}
        if kind == "velocity" and all(part.velocity is None for part in parts):
            expected = {}
        if shapes != expected:
            wrong = sorted(
                name for name in {**shapes, **expected} if shapes.get(name) != expected.get(name)
            )
            raise ValueError(f"the {kind} parameters come from another model or setting: {wrong}")
        for name, each in tensors.items():
            _check(f"{kind}.{name}", each, of[name].dtype_of(kind))
        found[kind] = dict(tensors)
    due = {
        each.name
        for number in flying
        for part in fragments[number % len(fragments)]
        for each in part.records
    }
    if found["pending"].keys() != due:
        raise ValueError(
            f"with these {len(fragments)} fragments, averages of {_some(due)} are under way; the "
            f"checkpoint has averages of {_some(found['pending'])}: load it with the fragments= "
            "that it was saved with"
        )
    return found, position


def _check(what: str, tensor: torch.Tensor, dtype: torch.dtype) -> None:
    """Raise an error unless it can be taken over as it is."""
    if tensor.layout != torch.strided or tensor.is_meta or tensor.dtype != dtype:
        kind = "meta" if tensor.is_meta else str(tensor.layout).removeprefix("torch.")
        raise TypeError(
            f"{what} must be a dense tensor of {dtype} with values, got {tensor.dtype} ({kind})"
        )
    if not bool(tensor.isfinite().all()):
        raise ValueError(f"{what} has values that are NaN or infinite: the checkpoint is damaged")


def _digest(tensors: Shared) -> str:
    """Return a digest of the values that must be equal, bit for bit, on all ranks."""
    found = hashlib.sha256()
    for kind in _COMMON:
        for name, each in sorted(tensors[kind].items()):
            found.update(f"{kind} {name} {each.dtype} {tuple(each.shape)}".encode())
            found.update(bits_of(each))
    return found.hexdigest()


def _some(names: Iterable[str]) -> str:
    every = sorted(names)
    more = [f"{len(every) - 4} more"] if len(every) > 4 else []
    return ", ".join(every[:4] + more) or "none"


def save(replica: Replica, flights: FragmentExchanges) -> dict[str, Any]:
    """Return what `DiLoCo.state_dict` describes."""
    pending = flights.settled()
    saved = residuals.save(
        replica.compressed,
        replica.codec.get_config(),
        RankTopology.alone(flights.engine.rank, flights.engine.size),
        replica.position["inner_step"],
        replica.scheduler,
    )
    flats = {
        "shared": {part: part.shared for part in replica.parts},
        "velocity": {part: part.velocity for part in replica.parts if part.velocity is not None},
        "pending": pending,
        "sent": flights.as_sent(),
    }
    tensors = {
        kind: {
            record.name: values.detach().cpu().clone()
            for part, flat in each.items()
            for record, values in part.split(flat)
        }
        for kind, each in flats.items()
    }
    for kind, untrained in zip(
        _UNTRAINED, (replica.untrained.shared, flights.untrained()), strict=True
    ):
        tensors[kind] = {name: each.cpu().clone() for name, each in untrained.items()}
    outer = json.dumps({"version": VERSION, **replica.position}, sort_keys=True)
    return {rank: {**each, **tensors, "outer": outer} for rank, each in saved.items()}


def load(
    replica: Replica,
    flights: FragmentExchanges,
    state_dict: Mapping[str, Any] | Sequence[Mapping[str, Any]],
    policy: Policy,
) -> None:
    """Restore what `save` returned, on all ranks or on none. A collective."""
    engine = flights.engine
    read: list[tuple[Shared, Position]] = []

    def read_mine() -> tuple[Position, str]:
        read.append(_read(state_dict, replica, engine.rank, engine.size))
        return read[0][1], _digest(read[0][0])

    with engine.control.act("load_state_dict()") as channel:
        every = run_on_all(channel, read_mine, "load")
        ((tensors, found),) = read
        for rank, (where, bits) in enumerate(every):
            if where != every[0][0]:
                problem = f"it is at {where}, but that of rank 0 is at {every[0][0]}"
            elif bits != every[0][1]:
                problem = (
                    "it is at the same step as that of rank 0, but its shared parameters, outer "
                    "momentum or averages have other values: load what one run saved at one time"
                )
            else:
                continue
            raise ValueError(f"rank {rank} cannot load its state_dict: {problem}")
        place = RankTopology.alone(engine.rank, engine.size)
        residuals.load(
            replica.compressed, replica.scheduler, place, channel, channel, state_dict, policy
        )
    replica.load(tensors)
    replica.untrained.begin(tensors["untrained"])
    replica.position.update(found)
    flights.load(tensors["pending"], tensors["sent"], tensors["averaged"])
