"""Presets from other distributions, found in the entry point group ``gradwire.presets``."""

import functools
import warnings
from typing import TYPE_CHECKING, Any

from gradwire import extension
from gradwire.errors import PluginError

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

__all__ = ["entry_points", "find", "load"]

GROUP = "gradwire.presets"


@functools.cache
def entry_points(taken: frozenset[str]) -> "dict[str, EntryPoint]":
    """Return the installed entry points by name, without loading them; leave out taken names."""
    import importlib.metadata

    found: dict[str, EntryPoint] = {}
    every = importlib.metadata.entry_points(group=GROUP)
    for entry in sorted(every, key=lambda each: (each.name, _distribution(each))):
        if entry.name in taken or entry.name in found:
            holder = "gradwire" if entry.name in taken else _distribution(found[entry.name])
            warnings.warn(
                f"{_distribution(entry)} and {holder} both have a preset {entry.name!r}; the one "
                f"from {_distribution(entry)} is ignored",
                RuntimeWarning,
                stacklevel=2,
            )
        else:
            found[entry.name] = entry
    return found


def load(entry: "EntryPoint") -> Any:
    """Return the preset of an entry point.

    Raises
    ------
    PluginError
        It cannot be imported, is not a `Preset`, or has another name.
    """
    from gradwire.presets._preset import Preset

    try:
        preset = entry.load()
    except Exception as error:
        raise PluginError(
            entry.name, _distribution(entry), f"{type(error).__name__}: {error}"
        ) from error
    if not isinstance(preset, Preset):
        reason = f"{entry.value} must be a gradwire.presets.Preset, got {preset!r}"
        raise PluginError(entry.name, _distribution(entry), reason)
    if preset.name != entry.name:
        reason = f"the entry point is named {entry.name!r}, but its preset {preset.name!r}"
        raise PluginError(entry.name, _distribution(entry), reason)
    return preset


def find(kind: object) -> type[extension.Sparsifier] | None:
    """Return the sparsifier of this kind, or None; load the installed presets if necessary.

    Raises
    ------
    PluginError
        No sparsifier has this kind, but a preset that could not be loaded may define it.
    """
    failed = None
    if kind not in extension.KINDS:
        for entry in entry_points(frozenset()).values():
            try:
                load(entry)
            except PluginError as error:
                failed = error
    found = extension.KINDS.get(kind) if isinstance(kind, str) else None
    if found is None and failed is not None:
        raise failed
    return found


def _distribution(entry: "EntryPoint") -> str:
    return "an unknown distribution" if entry.dist is None else entry.dist.name
