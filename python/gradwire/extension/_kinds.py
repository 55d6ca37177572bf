"""Registration of parts from other packages."""

import re
from typing import Any

from gradwire._part import Part, public_name

__all__ = ["Outside"]


class Outside(Part):
    """A part from another package. Its kind must differ from that of every other of its sort."""

    @classmethod
    def _register(cls) -> None:
        name = ".".join(_home(cls))
        kind: object = cls.__dict__["kind"]
        if not isinstance(kind, str) or not re.fullmatch(r"[a-z][a-z0-9_]{0,62}", kind):
            raise TypeError(
                f"{name}.kind must be a lower-case identifier of at most 63 characters, "
                f"got {kind!r}"
            )
        other = cls.KINDS.get(kind)
        # A class that is defined again, as in a notebook, replaces the old one.
        if other is not None and _home(other) != _home(cls):
            taken = ".".join(_home(other)) if issubclass(other, Outside) else public_name(other)
            raise TypeError(f"{name}.kind is {kind!r}, which {taken} already uses")
        cls.KINDS[kind] = cls


def _home(cls: type[Any]) -> tuple[str, str]:
    return cls.__module__, cls.__qualname__
