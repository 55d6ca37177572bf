"""Saves and restores DiLoCo: what is shared, what is under way, and each rank's residuals."""

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch

from gradwire import _validate
from gradwire.torch.diloco.part import Part

__all__ = ["Position", "Shared", "pack", "unpack"]

VERSION = 1
_KINDS = ("shared", "velocity", "pending")

Position = dict[str, int]
"""``inner_step``, ``sent`` and ``applied``: how far training is."""

Shared = dict[str, dict[str, torch.Tensor]]
"""Tensors by name: the shared parameters, the outer momentum, and averages to be applied."""


def pack(
    saved: Mapping[str, Mapping[str, Any]],
    parts: Iterable[Part],
    pending: Iterable[tuple[Part, torch.Tensor]],
    position: Position,
) -> dict[str, Any]:
    """Add what is shared to the checkpoint of a rank's residuals."""
    tensors: Shared = {kind: {} for kind in _KINDS}
    for part in parts:
        _add(tensors["shared"], part, part.shared)
        if part.velocity is not None:
            _add(tensors["velocity"], part, part.velocity)
    for part, mean in pending:
        _add(tensors["pending"], part, mean)
    outer = json.dumps({"version": VERSION, **position}, sort_keys=True)
    return {rank: {**each, **tensors, "outer": outer} for rank, each in saved.items()}


def unpack(saved: object, parts: Sequence[Part]) -> tuple[Shared, Position]:
    """Read and check what `pack` added, from any rank's checkpoint.

    Raises
    ------
    ValueError, TypeError
        It is not such a checkpoint, or of another model.
    """
    for one in [saved] if isinstance(saved, Mapping) else saved or ():  # type: ignore[attr-defined]
        for each in one.values() if isinstance(one, Mapping) else ():
            if isinstance(each, Mapping) and "outer" in each:
                return _unpack(each, parts)
    raise ValueError("expected what DiLoCo.state_dict() returned, or a list of these")


def _unpack(saved: Mapping[str, Any], parts: Sequence[Part]) -> tuple[Shared, Position]:
    about = json.loads(saved["outer"])
    if not isinstance(about, dict) or about.get("version") != VERSION:
        raise ValueError(f"expected version {VERSION} of DiLoCo's checkpoints, got {about!r}")
    position = {
        name: _validate.integer(name, about.get(name), low=0)
        for name in ("inner_step", "sent", "applied")
    }
    known = {each.name: each.tensor.shape for part in parts for each in part.records}
    found: Shared = {}
    for kind in _KINDS:
        tensors = saved.get(kind, {})
        if not isinstance(tensors, Mapping):
            raise TypeError(f"{kind} must be a dict, got {type(tensors).__name__}")
        shapes = {name: getattr(each, "shape", None) for name, each in tensors.items()}
        expected = known
        if kind == "pending":
            expected = {name: shape for name, shape in known.items() if name in shapes}
        if kind == "velocity" and all(part.velocity is None for part in parts):
            expected = {}
        if shapes != expected:
            wrong = sorted(
                name for name in {**shapes, **expected} if shapes.get(name) != expected.get(name)
            )
            raise ValueError(
                f"the {kind} parameters are those of another model or setting: {wrong}"
            )
        found[kind] = dict(tensors)
    return found, position


def _add(tensors: dict[str, torch.Tensor], part: Part, flat: torch.Tensor) -> None:
    for record, values in part.split(flat):
        tensors[record.name] = values.detach().cpu().clone()
