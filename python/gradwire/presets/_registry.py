"""The presets of this package and of others."""

from collections.abc import Iterable, Iterator, Mapping

from gradwire import _plugins
from gradwire.errors import PluginError
from gradwire.presets._preset import Preset

__all__ = ["Registry"]


class Registry(Mapping[str, Preset]):
    """Presets by name: those of this package, then what other distributions have.

    Others are found when the registry is first asked for something that is not its own, and each
    is loaded when it is asked for: then `gradwire.errors.PluginError` says what is wrong with it.
    """

    def __init__(self, own: Iterable[Preset]) -> None:
        self._own = {preset.name: preset for preset in own}
        self._taken = frozenset(self._own)

    def __getitem__(self, name: str) -> Preset:
        if name in self._own:
            return self._own[name]
        preset: Preset = _plugins.load(_plugins.entry_points(self._taken)[name])
        return preset

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
