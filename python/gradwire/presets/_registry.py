"""Presets: their description, their registration, and the mapping of names."""

import dataclasses
import inspect
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, ParamSpec

from gradwire import _plugins
from gradwire._codec import Codec, IndexCoding
from gradwire.errors import PluginError
from gradwire.exchange import Exchange
from gradwire.memory import Memory
from gradwire.quantize import Quantizer
from gradwire.sparsify import Sparsifier

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

P = ParamSpec("P")


@dataclasses.dataclass(frozen=True, kw_only=True, repr=False)
class Preset:
    """A preset, described for tools that list presets.

    Attributes
    ----------
    name : str
        Name of the function in this package and in `gradwire`.
    build : callable
        The function, which returns a `gradwire.Codec`.
    summary : str
        Description in one line.
    paper : str or None
        Authors, title and venue; None for a baseline.
    example : mapping
        Arguments of an example codec, which tests and comparisons build.
    """

    name: str
    build: Callable[..., Codec]
    summary: str
    paper: str | None
    example: Mapping[str, Any]

    def __repr__(self) -> str:
        return f"<preset {self.call}: {self.summary}>"

    @property
    def call(self) -> str:
        """The call that builds the example codec."""
        options = ", ".join(f"{name}={value!r}" for name, value in self.example.items())
        return f"{self.name}({options})"


OWN: list[Preset] = []  # the presets of this package, in the order in which they are imported


def preset(
    *, summary: str, paper: str | None, example: Mapping[str, Any] | None = None
) -> Callable[[Callable[P, Codec]], Callable[P, Codec]]:
    """Register the decorated function as a preset, and complete its docstring.

    Options that it does not explain itself are those of the parts of the example codec.
    """

    def register(build: Callable[P, Codec]) -> Callable[P, Codec]:
        if build.__doc__:  # not with python -OO
            build.__doc__ = _full_docstring(build, example or {}, paper)
        found = Preset(
            name=build.__name__, build=build, summary=summary, paper=paper, example=example or {}
        )
        OWN.append(found)
        return build

    return register


def composition(
    sparsify: Sparsifier,
    quantize: Quantizer,
    memory: Memory,
    indices: IndexCoding,
    exchange: Exchange,
) -> Codec:
    return Codec(
        sparsify=sparsify, quantize=quantize, memory=memory, indices=indices, exchange=exchange
    )


def _full_docstring(
    build: Callable[..., Codec], example: Mapping[str, Any], paper: str | None
) -> str:
    """Return the docstring of a preset with all options, what it returns and raises, and papers."""
    text, _, options_text = inspect.cleandoc(build.__doc__ or "").partition(
        "\n\nParameters\n----------\n"
    )
    codec = build(**example)
    parts = [getattr(codec, field.name) for field in dataclasses.fields(codec)]
    options = []
    for name, option in inspect.signature(build).parameters.items():
        entry = _entry(options_text, name)
        if not entry and name in _PARTS:
            kind, _, does = _entry(inspect.getdoc(Codec) or "", name).partition("\n")
            does = re.split(r"[.:]", does)[0]
            entry = f"{kind}\n{does}. ``{option.default!r}`` by default.\n"
        entries = (_entry(_doc(part), name) for part in parts)
        options.append(entry or next(filter(None, entries), ""))
    sections = {
        "Parameters": "".join(options).rstrip(),
        "Returns": "gradwire.Codec",
        "Raises": "ValueError, TypeError\n    An option is out of range, or of the wrong type.",
    }
    if paper:
        sections["References"] = "\n\n".join(map(_citation, paper.split("; ")))
    return "\n\n".join(
        [text, *(f"{name}\n{'-' * len(name)}\n{body}" for name, body in sections.items())]
    )


_PARTS = ("quantize", "memory", "indices", "exchange")


def _doc(part: object) -> str:
    return inspect.getdoc(type(part)) or ""


def _entry(text: str, name: str) -> str:
    """Return the lines on an option in a docstring, with this option's name alone; or nothing."""
    entry = rf"^(?:\w+, )*{name}(?:, \w+)*((?: :.*)?\n(?:    .*\n?)+)"
    match = re.search(entry, f"{text}\n", re.MULTILINE)
    return f"{name}{match[1].rstrip()}\n" if match else ""


def _citation(paper: str) -> str:
    authors, _, rest = paper.partition(": ")
    title, _, venue = rest.rpartition(", ")
    return f'{authors}, "{title}", {venue}.'


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
    elif preset.name != entry.name:
        reason = f"the entry point is named {entry.name!r}, but its preset {preset.name!r}"
    else:
        return preset
    raise PluginError(entry.name, _plugins.distribution(entry), reason)
