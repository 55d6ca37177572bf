"""Entry points of other distributions in the group ``gradwire.presets``.

Loading an entry imports its module, which registers the parts that are defined there. Whether the
entry is a preset is for `gradwire.presets` to find out.
"""

import functools
import warnings
from collections.abc import Container
from typing import TYPE_CHECKING

from gradwire.errors import PluginError

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

GROUP = "gradwire.presets"


@functools.cache
def entry_points(taken: frozenset[str]) -> "dict[str, EntryPoint]":
    """Return the installed entry points by name, without loading them; leave out taken names."""
    import importlib.metadata

    entries: dict[str, EntryPoint] = {}
    every = importlib.metadata.entry_points(group=GROUP)
    for entry in sorted(every, key=lambda entry: (entry.name, distribution(entry))):
        if entry.name in taken or entry.name in entries:
            holder = "gradwire" if entry.name in taken else distribution(entries[entry.name])
            warnings.warn(
                f"{distribution(entry)} and {holder} both have a preset {entry.name!r}; the one "
                f"from {distribution(entry)} is ignored",
                RuntimeWarning,
                stacklevel=2,
            )
        else:
            entries[entry.name] = entry
    return entries


def load(entry: "EntryPoint") -> object:
    """Return the object of an entry point, or raise a PluginError if it cannot be imported."""
    try:
        return entry.load()
    except Exception as error:
        raise PluginError(
            entry.name, distribution(entry), f"{type(error).__name__}: {error}"
        ) from error


def search(kind: object, known: Container[object]) -> None:
    """Load installed entry points until a part of this kind is known, each entry once.

    Raises a PluginError if there is none, but an entry that failed to load may define it.
    """
    if not isinstance(kind, str):
        return
    failed = None
    for entry in entry_points(frozenset()).values():
        if kind in known:
            return
        failed = _failure(entry) or failed
    if kind not in known and failed is not None:
        raise PluginError(*failed)


@functools.cache
def _failure(entry: "EntryPoint") -> tuple[str, str, str] | None:
    """Load an entry; return the arguments of a `PluginError` if that fails."""
    try:
        load(entry)
    except PluginError as error:
        return error.preset, error.distribution, error.reason
    return None


def distribution(entry: "EntryPoint") -> str:
    """Return the name of the distribution that an entry point belongs to."""
    return "an unknown distribution" if entry.dist is None else entry.dist.name
