"""The description of a preset, and the parts that most presets share."""

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from gradwire.codec import Codec
from gradwire.exchange import AllGather
from gradwire.memory import NoMemory, Residual
from gradwire.quantize import Float32

__all__ = ["DROP", "EXACT", "GATHER", "KEEP", "OWN", "Preset", "preset"]

Build = TypeVar("Build", bound=Callable[..., Codec])

# Parts are immutable, so one instance of each can be the default of all codecs.
EXACT = Float32()
KEEP = Residual()
DROP = NoMemory()
GATHER = AllGather()


@dataclasses.dataclass(frozen=True, kw_only=True, repr=False)
class Preset:
    """A preset, described for tools that list presets."""

    name: str
    """The name of the function in this package and in `gradwire`."""
    build: Callable[..., Codec]
    """The function itself."""
    summary: str
    """What it does, in one line."""
    paper: str | None
    """Authors, title, venue; None for a baseline."""
    example: Mapping[str, Any]
    """Arguments of an example codec, which tests and comparisons of all presets build."""

    def __repr__(self) -> str:
        return f"<preset {self.call}: {self.summary}>"

    @property
    def call(self) -> str:
        """The call that builds the example codec."""
        options = ", ".join(f"{name}={value!r}" for name, value in self.example.items())
        return f"{self.name}({options})"


OWN: list[Preset] = []
"""The presets of this package, in the order in which they are imported."""


def preset(
    *, summary: str, paper: str | None, example: Mapping[str, Any]
) -> Callable[[Build], Build]:
    """Register the decorated function as a preset of this package."""

    def register(build: Build) -> Build:
        OWN.append(
            Preset(name=build.__name__, build=build, summary=summary, paper=paper, example=example)
        )
        return build

    return register
