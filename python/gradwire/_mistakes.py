"""Hints for common mistakes in calls and names."""

import dis
import functools
import inspect
import sys
from collections.abc import Callable, Mapping
from typing import Any, NoReturn, ParamSpec, TypeVar

P = ParamSpec("P")
R = TypeVar("R")


def explain(**words: str | Callable[[Any], str]) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Decorate a function with hints for common mistakes in its calls.

    For an unknown keyword in `words`, the TypeError has the hint: the words, formatted with the
    value, or the result of calling them with it. For any other unknown keyword, and for too many
    positional arguments, it lists the keyword options of the function.
    """

    def options(names: list[str]) -> str:
        return ", ".join(f"{each}=" for each in names if each != "self")

    def decorate(function: Callable[P, R]) -> Callable[P, R]:
        name = function.__qualname__.removesuffix(".__init__").rpartition(".")[2]
        parameters = inspect.signature(function).parameters.values()
        takes_any = any(each.kind is each.VAR_KEYWORD for each in parameters)
        placed = [each.name for each in parameters if each.kind <= each.POSITIONAL_OR_KEYWORD]
        named = [each.name for each in parameters if each.kind is each.KEYWORD_ONLY]

        @functools.wraps(function)
        def call(*args: P.args, **kwargs: P.kwargs) -> R:
            if len(args) > len(placed):
                shown = [each for each in placed if each != "self"]
                count = len(args) - len(placed) + len(shown)
                raise TypeError(
                    f"{name}() takes {' and '.join(shown) or 'nothing'} by position, got {count} "
                    f"arguments: pass the others by name ({options(named) or 'option=value'})"
                )
            for keyword, value in kwargs.items():
                if keyword in words:
                    text = words[keyword]
                    text = text.format(value) if isinstance(text, str) else text(value)
                elif takes_any or keyword in placed or keyword in named:
                    continue
                else:
                    text = f"it has {options(placed + named) or 'none'}"
                raise TypeError(f"{name}() has no option {keyword}=; {text}")
            return function(*args, **kwargs)

        return call

    return decorate


def former_names(module: str, now: Mapping[str, str]) -> Callable[[str], NoReturn]:
    """Return a ``__getattr__`` for a module, which gives the new names of former ones.

    ``now`` maps old names to the words after "is now". A module with its own ``__getattr__`` calls
    it last. Hide it from type checkers, which would otherwise accept any name.
    """

    def absent(name: str) -> NoReturn:
        if name not in now:
            raise AttributeError(f"module {module!r} has no attribute {name!r}")
        told = f"{module}.{name} is now {now[name]}"
        caller = sys._getframe(1)
        while caller.f_code.co_name == "__getattr__" and caller.f_back is not None:
            caller = caller.f_back
        # `from module import name` turns an AttributeError into one of its own, without the words.
        if caller.f_code.co_code[caller.f_lasti] == dis.opmap["IMPORT_FROM"]:
            raise ImportError(told, name=module)
        raise AttributeError(told)

    return absent
