"""Which codec a parameter has, by its name."""

import fnmatch
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from gradwire.codec import Codec
from gradwire.torch.engine.checks import check_codec

if TYPE_CHECKING:
    from gradwire.exchange import Exchange

__all__ = ["Assignment", "Codecs"]

Codecs = Codec | Mapping[str, Codec | None]
"""One codec for all parameters, or one for each pattern of names; None sends them dense."""


class Assignment:
    """A codec, or none, for each parameter.

    Parameters
    ----------
    given : gradwire.Codec or mapping of str to (gradwire.Codec or None)
        Keys are names or patterns of names (``*``, ``?``, ``[abc]``, matched with case); the first
        that matches counts. A parameter that none matches is sent dense.

    Raises
    ------
    TypeError
        It is neither.
    ValueError
        It has no codec, or codecs of several exchanges, or memories in one buffer beside others.
    """

    def __init__(self, given: object) -> None:
        if not isinstance(given, Mapping):
            check_codec(given)
            assert isinstance(given, Codec)  # or check_codec had raised
            self.given: Codecs = given
            self._rules: list[tuple[str, Codec | None]] = [("*", given)]
        else:
            for pattern, codec in given.items():
                if not isinstance(pattern, str):
                    raise TypeError(f"the keys are names of parameters, got {pattern!r}")
                if codec is not None:
                    check_codec(codec)
            self.given = dict(given)
            self._rules = list(self.given.items())
        codecs = self.codecs
        if not codecs:
            raise ValueError("there is no codec among the values: leave the model as it is instead")
        first = codecs[0]
        for each in codecs[1:]:
            if each.exchange != first.exchange:
                raise ValueError(
                    "all codecs of one attachment must have the same exchange, because a bucket "
                    f"holds parameters of all of them: got {first.exchange!r} and {each.exchange!r}"
                )
            if each.memory.undoable != first.memory.undoable:
                raise ValueError(
                    f"{first.memory!r} and {each.memory!r} do not go together: if one codec has "
                    "low_memory=True, all others need it, too"
                )

    @property
    def codecs(self) -> list[Codec]:
        """All codecs, each of them once."""
        found: list[Codec] = []
        for _, codec in self._rules:
            if codec is not None and codec not in found:
                found.append(codec)
        return found

    @property
    def exchange(self) -> "Exchange":
        """The exchange of all codecs."""
        return self.codecs[0].exchange

    def of(self, name: str) -> Codec | None:
        """Return the codec of a parameter."""
        for pattern, codec in self._rules:
            if fnmatch.fnmatchcase(name, pattern):
                return codec
        return None

    def check(self, names: Iterable[str]) -> None:
        """Raise a ValueError if a pattern matches no parameter: it is mistyped."""
        if not isinstance(self.given, Mapping):
            return
        names = list(names)
        for pattern, _ in self._rules:
            if not any(fnmatch.fnmatchcase(name, pattern) for name in names):
                raise ValueError(f"no parameter is called {pattern!r}; there are {_shown(names)}")

    def get_config(self) -> Any:
        """Return the codec's config, or a list of the patterns with their configs."""
        if isinstance(self.given, Codec):
            return self.given.get_config()
        return [
            [pattern, None if codec is None else codec.get_config()]
            for pattern, codec in self._rules
        ]


def _shown(names: list[str]) -> str:
    shown = ", ".join(map(repr, names[:6]))
    return shown if len(names) <= 6 else f"{shown} and {len(names) - 6} more"
