"""Saves and restores DiLoCo: shared parameters, exchanges in progress, and residuals."""

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch

from gradwire import _validate
from gradwire._validate import refuse_type, require
from gradwire.torch.checkpoint import load as residuals
from gradwire.torch.checkpoint.format import Policy
from gradwire.torch.checkpoint.gather import run_on_all
from gradwire.torch.diloco.exchanges import FragmentExchanges
from gradwire.torch.diloco.replica import FragmentState, Position, Replica, Shared
from gradwire.torch.tensors import bytes_of
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
    ranks = {
        name: state
        for one in ([saved] if isinstance(saved, Mapping) else saved or ())  # type: ignore[attr-defined]
        for name, state in (one.items() if isinstance(one, Mapping) else ())
        if isinstance(state, Mapping) and "outer" in state
    }
    require(ranks, "expected what DiLoCo.state_dict() returned, or a list of these")
    mine = ranks.get(f"rank{rank}") if len(ranks) == world_size else None
    state = mine or next(iter(ranks.values()))
    tensors, position = _read_one(state, replica.fragments)
    for kind in _UNTRAINED:
        tensors[kind] = replica.untrained.read(state.get(kind, {}))
    if mine is None and len(ranks) > 1:
        tensors["sent"] = {}
    return tensors, position


def _read_one(
    saved: Mapping[str, Any], fragments: Sequence[Sequence[FragmentState]]
) -> tuple[Shared, Position]:
    if not isinstance(text := saved["outer"], str):
        refuse_type("outer", "a str", text)
    about: Any = messages.read(text)
    current = isinstance(about, dict) and about.get("version") == VERSION
    require(current, "expected version {} of DiLoCo's checkpoints, got {!r}", VERSION, about)
    position = {
        name: _validate.integer(name, about.get(name), low=0)
        for name in ("inner_step", "sent", "applied")
    }
    flying = range(position["applied"], position["sent"])
    require(
        position["applied"] <= position["sent"] and len(flying) <= len(fragments),
        "the checkpoint has applied {} of {} exchanges, and there are {} fragments: it is damaged, "
        "or has other fragments",
        *(position["applied"], position["sent"], len(fragments)),
    )
    parts = [part for fragment in fragments for part in fragment]
    known = {slot.name: slot.tensor.shape for part in parts for slot in part.records}
    part_of = {slot.name: part for part in parts for slot in part.records}
    read: Shared = {}
    for kind in _KINDS:
        tensors = saved.get(kind, {})
        if not isinstance(tensors, Mapping):
            refuse_type(kind, "a dict", tensors)
        shapes = {name: getattr(tensor, "shape", None) for name, tensor in tensors.items()}
        expected = known
        if kind in ("pending", "sent"):
            expected = {name: shape for name, shape in known.items() if name in shapes}
        if kind == "velocity" and all(part.velocity is None for part in parts):
            expected = {}
        names = sorted({**shapes, **expected})
        wrong = [name for name in names if shapes.get(name) != expected.get(name)]
        message = "the {} parameters come from another model or setting: {}"
        require(not wrong and len(shapes) == len(expected), message, kind, wrong)
        for name, tensor in tensors.items():
            _check(f"{kind}.{name}", tensor, part_of[name].dtype_of(kind))
        read[kind] = dict(tensors)
    due = {
        slot.name
        for number in flying
        for part in fragments[number % len(fragments)]
        for slot in part.records
    }
    require(
        read["pending"].keys() == due,
        "with these {} fragments, averages of {} are under way; the checkpoint has averages of {}: "
        "load it with the fragments= that it was saved with",
        *(len(fragments), _some(due), _some(read["pending"])),
    )
    return read, position


def _check(what: str, tensor: torch.Tensor, dtype: torch.dtype) -> None:
    """Raise an error unless it can be taken over as it is."""
    kind = "meta" if tensor.is_meta else str(tensor.layout).removeprefix("torch.")
    require(
        kind == "strided" and tensor.dtype == dtype,
        "{} must be a dense tensor of {} with values, got {} ({})",
        *(what, dtype, tensor.dtype, kind),
        kind=TypeError,
    )
    finite = bool(tensor.isfinite().all())
    require(finite, "{} has values that are NaN or infinite: the checkpoint is damaged", what)


def _digest(tensors: Shared) -> str:
    """Return a digest of the values that must be equal, bit for bit, on all ranks."""
    digest = hashlib.sha256()
    for kind in _COMMON:
        for name, tensor in sorted(tensors[kind].items()):
            digest.update(f"{kind} {name} {tensor.dtype} {tuple(tensor.shape)}".encode())
            digest.update(bytes_of(tensor).numpy().data)
    return digest.hexdigest()


def _some(names: Iterable[str]) -> str:
    every = sorted(names)
    more = [f"{len(every) - 4} more"] if len(every) > 4 else []
    return ", ".join(every[:4] + more) or "none"


def save(replica: Replica, flights: FragmentExchanges) -> dict[str, Any]:
    """Return what `DiLoCo.state_dict` describes."""
    pending = flights.wait_for_averages()
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
        "sent": flights.sent_parameters(),
    }
    tensors = {
        kind: {
            record.name: values.detach().cpu().clone()
            for part, flat in flat_of.items()
            for record, values in part.split(flat)
        }
        for kind, flat_of in flats.items()
    }
    for kind, untrained in zip(
        _UNTRAINED, (replica.untrained.shared, flights.untrained()), strict=True
    ):
        tensors[kind] = {name: tensor.cpu().clone() for name, tensor in untrained.items()}
    outer = json.dumps({"version": VERSION, **replica.position}, sort_keys=True)
    return {rank: {**state, **tensors, "outer": outer} for rank, state in saved.items()}


def load(
    replica: Replica,
    flights: FragmentExchanges,
    state_dict: Mapping[str, Any] | Sequence[Mapping[str, Any]],
    policy: Policy,
) -> None:
    """Restore what `save` returned, on all ranks or on none. A collective."""
    engine = flights.engine
    tensors: Shared = {}
    position: Position = {}

    def read_mine() -> tuple[Position, str]:
        shared, place = _read(state_dict, replica, engine.rank, engine.size)
        tensors.update(shared)
        position.update(place)
        return position, _digest(tensors)

    with engine.control.act("load_state_dict()") as channel:
        every = run_on_all(channel, read_mine, "load")
        for rank, (where, bits) in enumerate(every):
            cannot, first = f"rank {rank} cannot load its state_dict: it is at", every[0][0]
            require(where == first, "{} {}, but that of rank 0 is at {}", cannot, where, first)
            require(
                bits == every[0][1],
                "{} the same step as that of rank 0, but its shared parameters, outer momentum or "
                "averages have other values: load what one run saved at one time",
                cannot,
            )
        place = RankTopology.alone(engine.rank, engine.size)
        residuals.load(
            replica.compressed, replica.scheduler, place, channel, channel, state_dict, policy
        )
    replica.load(tensors)
    replica.untrained.begin(tensors["untrained"])
    replica.position.update(position)
    flights.load(tensors["pending"], tensors["sent"], tensors["averaged"])
