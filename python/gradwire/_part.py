"""The base class of all parts of a codec: configuration, repr, and the registry of each kind."""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Self, TypeVar

from gradwire._validate import Checked, refuse_type, require

P = TypeVar("P", bound="Part")


@dataclasses.dataclass(frozen=True, repr=False)
class Part(Checked):
    """An immutable, comparable, hashable description of one part of a codec.

    A class that sets ``kind`` is registered under it when it is defined. It must then define
    everything in ``_STATED``: no property on which the rest of the package relies has a default
    that a new part could overlook.
    """

    kind: ClassVar[str]  #: the name of the part in a configuration

    KINDS: ClassVar[dict[str, type["Part"]]]
    """The registered classes of one kind of part; each base class has its own."""

    _STATED: ClassVar[tuple[str, ...]] = ()

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        if "kind" not in cls.__dict__:
            return
        missing = ", ".join(name for name in cls._STATED if not _states(cls, name))
        require(not missing, "{} must set {}", cls.__qualname__, missing, kind=TypeError)
        cls._register()

    @classmethod
    def _register(cls) -> None:
        other = cls.KINDS.setdefault(cls.kind, cls)
        names = (cls.__qualname__, cls.kind, other.__qualname__)
        require(other is cls, "{}.kind is {!r}, as of {}", *names, kind=TypeError)

    def get_config(self) -> dict[str, Any]:
        """Return ``{"kind": ..., field: value, ...}``: plain, JSON-able, for `from_config`."""
        return {"kind": self.kind, **self._options()}

    def _options(self) -> dict[str, Any]:
        options = {name: getattr(self, name) for name in option_names(type(self))}
        for name, value in options.items():
            if isinstance(value, Part):
                options[name] = value.get_config()
            elif isinstance(value, tuple):
                options[name] = list(value)
        return options

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
        options, name = dict(config), cls.__name__
        kind = options.pop("kind", None)
        message = "{} has kind {!r}, but the configuration has {!r}"
        require(kind == cls.kind, message, name, cls.kind, kind)
        unknown = ", ".join(sorted(options.keys() - set(option_names(cls))))
        require(not unknown, "{} has no option {}", name, unknown)
        return cls(**options)

    def for_shape(self, shape: Sequence[int]) -> Self:
        """Return the part with the options that depend on a tensor's shape filled in.

        These options are None by default. A part that has none of them, or has them all set,
        returns itself.
        """
        return self

    def __repr__(self) -> str:
        # Can be evaluated after `import gradwire`; options at their default are left out.
        shown = [
            f"{field.name}={value!r}"
            for field in dataclasses.fields(self)
            if field.init and (value := getattr(self, field.name)) != field.default
        ]
        return f"{public_name(type(self))}({', '.join(shown)})"


def _states(part: type[Part], name: str) -> bool:
    """Tell whether a class or one between it and the base of its kind of part defines a name."""
    for cls in part.__mro__:
        if "_STATED" in cls.__dict__:
            return False
        if name in cls.__dict__:
            return True
    return False


def public_name(part: type[Part]) -> str:
    """Return the name of a class with the module that exports it."""
    home = part.__module__
    if _is_own(part):  # exported one level above its module
        home = ".".join(home.split(".")[:2])
    return f"{home}.{part.__name__}"


def _is_own(part: type[Part]) -> bool:
    return part.__module__.partition(".")[0] == "gradwire"


def option_names(part: type[Part]) -> list[str]:
    return [field.name for field in dataclasses.fields(part) if field.init]


def part_from_config(argument: str, config: object, kinds: Mapping[str, type[Part]]) -> Part:
    """Build the part whose kind the configuration names; `kinds` has the candidates."""
    if not isinstance(config, dict):
        refuse_type(argument, "a dict", config)
    kind: Any = config.get("kind")
    known = ", ".join(kinds)
    require(kind in kinds, "{} has kind {!r}, expected one of {}", argument, kind, known)
    return kinds[kind].from_config(config)


def own_parts(base: type[P]) -> tuple[type[P], ...]:
    """Return the parts of this package of one sort, in the order in which they are imported."""
    return tuple(cls for cls in base.KINDS.values() if _is_own(cls) and issubclass(cls, base))


def check_part(argument: str, value: object, base: type[Part]) -> None:
    """Check that an argument is an instance of a part of this sort."""
    if isinstance(value, base) and hasattr(value, "kind"):
        return
    names = ", ".join(cls.__name__ for cls in own_parts(base))
    shown = value.__name__ if isinstance(value, type) else repr(value)
    hint = "; call the class" if isinstance(value, type) and issubclass(value, base) else ""
    raise TypeError(f"{argument} must be one of gradwire.{argument}.{{{names}}}, got {shown}{hint}")
