"""The mapping of names to presets, including those of other packages."""

from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING

from gradwire import _plugins
from gradwire.errors import PluginError
from gradwire.presets._preset import Preset

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

__all__ = ["Registry"]


class Registry(Mapping[str, Preset]):
    """Presets by name: those of this package, then those of other distributions.

    Other distributions are searched when a name that is not in this package is first looked up, or
    when all names are listed. Each of their presets is loaded when it is looked up, which raises
    `gradwire.errors.PluginError` if it cannot be used.
    """

    def __init__(self, own: Iterable[Preset]) -> None:
        self._own = {preset.name: preset for preset in own}
        self._taken = frozenset(self._own)

    def __getitem__(self, name: str) -> Preset:
        if name in self._own:
            return self._own[name]
        return _load(_plugins.entry_points(self._taken)[name])

    def __contains__(self, name: object) -> bool:
        return name in self._own or name in _plugins.entry_points(self._taken)

    def __iter__(self) -> Iterator[str]:
        yield from self._own
        yield from _plugins.entry_points(self._taken)

    def __repr__(self) -> str:
        lines = [f"{len(self)} presets; PRESETS[name].build makes a codec"]
        for name in self:
            try:
                lines.append(f"  {name:<12} {self[name].summary}")
            except PluginError as error:
                lines.append(f"  {name:<12} {error}")
        return "\n".join(lines)

    def __len__(self) -> int:
        return len(self._own) + len(_plugins.entry_points(self._taken))


def _load(entry: "EntryPoint") -> Preset:
    """Return the preset of an entry point, once it is known to be one of this name."""
    preset = _plugins.load(entry)
    if not isinstance(preset, Preset):
        reason = f"{entry.value} must be a gradwire.presets.Preset, got {preset!r}"
        raise PluginError(entry.name, _plugins.distribution(entry), reason)
    if preset.name != entry.name:
        reason = f"the entry point is named {entry.name!r}, but its preset {preset.name!r}"
        raise PluginError(entry.name, _plugins.distribution(entry), reason)
    return preset
