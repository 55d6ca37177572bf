"""The base class of all parts of a codec: configuration and repr."""

import dataclasses
from collections.abc import Sequence
from typing import Any, ClassVar, Self

__all__ = ["Part", "option_names", "part_from_config"]


@dataclasses.dataclass(frozen=True, repr=False)
class Part:
    """An immutable, comparable, hashable description of one part of a codec."""

    kind: ClassVar[str]
    """The name of the part in a configuration."""

    def get_config(self) -> dict[str, Any]:
        """Return ``{"kind": ..., field: value, ...}``: plain, JSON-able, for `from_config`."""
        options = {name: getattr(self, name) for name in option_names(type(self))}
        return {"kind": self.kind} | {
            name: list(value) if isinstance(value, tuple) else value
            for name, value in options.items()
        }

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> Self:
        """Build the part that `get_config` describes; the inverse of it.

        Raises
        ------
        ValueError
            Another kind, an unknown field, or a value out of range.
        TypeError
            A value of the wrong type.
        """
        options = dict(config)
        kind = options.pop("kind", None)
        if kind != cls.kind:
            raise ValueError(
                f"{cls.__name__} has kind {cls.kind!r}, but the configuration has {kind!r}"
            )
        unknown = options.keys() - option_names(cls).keys()
        if unknown:
            raise ValueError(f"{cls.__name__} has no option {', '.join(sorted(unknown))}")
        return cls(**options)

    def for_shape(self, shape: Sequence[int]) -> Self:
        """Return the part with the options that depend on a tensor's shape filled in.

        These options are None by default. A part that has none of them, or has them all set,
        returns itself.
        """
        del shape
        return self

    def __repr__(self) -> str:
        # Can be evaluated after `import gradwire`; options at their default are left out.
        shown = [
            f"{field.name}={value!r}"
            for field in dataclasses.fields(self)
            if field.init and (value := getattr(self, field.name)) != field.default
        ]
        return f"{_home(type(self))}.{type(self).__name__}({', '.join(shown)})"

    def _set(self, name: str, value: object) -> None:
        # Normalizes a field while the frozen instance is still being built.
        object.__setattr__(self, name, value)


def _home(part: type[Part]) -> str:
    # Parts of this package are exported one level above their module.
    package, _, rest = part.__module__.partition(".")
    return f"{package}.{rest.partition('.')[0]}" if package == "gradwire" else part.__module__


def option_names(part: type[Part]) -> dict[str, None]:
    """Return the names of a part's options, in order, as keys."""
    return {field.name: None for field in dataclasses.fields(part) if field.init}


def part_from_config(argument: str, config: object, classes: tuple[type[Part], ...]) -> Part:
    """Build the part whose kind the configuration names; `classes` lists the candidates."""
    if not isinstance(config, dict):
        raise TypeError(f"{argument} must be a dict, got {config!r} ({type(config).__name__})")
    kinds = {cls.kind: cls for cls in classes}
    kind = config.get("kind")
    if kind not in kinds:
        raise ValueError(f"{argument} has kind {kind!r}, expected one of {', '.join(kinds)}")
    return kinds[kind].from_config(config)
