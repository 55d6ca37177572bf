"""Rules by parameter names: the first pattern that matches a name applies."""

import fnmatch
from collections.abc import Iterable, Mapping
from typing import TypeVar

T = TypeVar("T")


def first(rules: Mapping[str, T], *names: str) -> T | None:
    """Return the rule of the first pattern that matches one of a tensor's names, or None.

    Patterns have ``*``, ``?`` and ``[abc]``, and are matched with case.
    """
    for pattern, what in rules.items():
        if any(fnmatch.fnmatchcase(name, pattern) for name in names):
            return what
    return None


def check(rules: Iterable[str], names: Iterable[str], what: str = "parameter") -> None:
    """Raise a TypeError for a pattern that is not a str, a ValueError if it matches no name."""
    names = list(names)
    for pattern in rules:
        if not isinstance(pattern, str):
            raise TypeError(f"the keys are names of {what}s, got {pattern!r}")
        if not any(fnmatch.fnmatchcase(name, pattern) for name in names):
            plain = pattern.removeprefix("module.").replace("_orig_mod.", "")
            if any(fnmatch.fnmatchcase(name, plain) for name in names):
                raise ValueError(
                    f"no {what} is called {pattern!r}: use its name from before the model was "
                    f"wrapped or compiled, {plain!r}"
                )
            more = f" and {len(names) - 6} more" if len(names) > 6 else ""
            shown = ", ".join(map(repr, names[:6]))
            raise ValueError(f"no {what} is called {pattern!r}; there are {shown}{more}")
