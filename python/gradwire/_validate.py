"""Argument checks whose messages name the argument, the expected value and the given one."""

import dataclasses
import functools
import math
import operator
import reprlib
import types
from collections.abc import Callable, Collection
from datetime import timedelta
from numbers import Integral, Real
from typing import Annotated, Any, Literal, NoReturn, Union, get_args, get_origin

MAX_NUMEL = 2**32 - 1  # maximum number of entries of a tensor: positions have 32 bits


def require(
    holds: object, problem: str, *values: object, kind: type[Exception] = ValueError
) -> None:
    """Raise an error of this kind unless something holds; only then are the values formatted."""
    if not holds:
        raise kind(problem.format(*values))


def refuse_type(name: str, expected: str, value: object) -> NoReturn:
    """Raise a TypeError that says what an argument must be, such as "an integer"."""
    shown = f"{reprlib.repr(value)} ({type(value).__name__})"
    raise TypeError(f"{name} must be {expected}, got {shown}")


def _require_limits(name: str, value: object, limits: dict[str, bool]) -> None:
    """Raise a ValueError for the first limit that does not hold, such as "at least 1"."""
    for limit, holds in limits.items():
        if not holds:
            raise ValueError(f"{name} must be {limit}, got {value!r}")


def real(name: str, value: object) -> float:
    """Return a real number as a float; numpy scalars are accepted, bool and str are not."""
    if isinstance(value, bool) or not isinstance(value, Real):
        refuse_type(name, "a real number", value)
    try:
        return float(value)
    except OverflowError:
        raise ValueError(f"{name} must fit in a float64, got {value!r}") from None


def unit_interval(name: str, value: object, *, below: float = math.inf) -> float:
    """Return a number in the interval (0, 1], or with ``below=1`` in (0, 1)."""
    number = real(name, value)
    limits = {"greater than 0 and at most 1": 0.0 < number <= 1.0}
    _require_limits(name, value, {**limits, f"less than {below}": number < below})
    return number


def ratio(name: str, value: object, *, k: bool = False) -> float:
    """Return a share of the entries, in (0, 1]; for an integer, the error suggests ``k``."""
    number = real(name, value)
    if isinstance(value, Integral) and number >= 1.0:
        if number == 1.0:
            one = "k=1 for one entry, or " if k else ""
            meant = f"=1, an integer, may mean one entry or all: pass {one}{name}=1.0 for all"
        else:
            more = f": pass k={value} for that many entries" if k else ""
            meant = f" must be greater than 0 and at most 1, got {value}{more}"
        raise ValueError(f"{name}{meant}")
    return unit_interval(name, value)


def positive(
    name: str,
    value: object,
    *,
    low: float = 0,
    above: float = -math.inf,
    below: float = math.inf,
    high: float = math.inf,
) -> float:
    """Return a finite number >= 0, and in low <= number < below, above < number <= high."""
    number = real(name, value)
    limits = {
        "finite and not negative": 0.0 <= number < math.inf,
        f"at least {low}": low <= number,
        f"greater than {above}": above < number,
        f"less than {below}": number < below,
        f"at most {high}": number <= high,
    }
    _require_limits(name, value, limits)
    return number


def either(what: str, **options: object) -> None:
    """Check that exactly one of two options is given, and the other one None."""
    names = " or ".join(f"{name}=" for name in options)
    values = " and ".join(f"{name}={value!r}" for name, value in options.items())
    count = sum(value is not None for value in options.values())
    require(count == 1, "{} takes either {}, got {}", what, names, values, kind=TypeError)


def pair(name: str, value: object, parts: str) -> tuple[Any, Any]:
    if not isinstance(value, tuple | list) or len(value) != 2:
        refuse_type(name, f"a pair ({parts}) or None", value)
    first, second = value
    return first, second


def band(name: str, value: object) -> tuple[float, float]:
    """Return a pair of finite numbers (low, high) with 0 <= low <= 1 <= high."""
    first, second = pair(name, value, "low, high")
    low, high = positive(f"{name}[0]", first), positive(f"{name}[1]", second)
    _require_limits(name, value, {"(low, high) with 0 <= low <= 1 <= high": low <= 1.0 <= high})
    return low, high


def integer(name: str, value: object, *, low: int, high: int = 2**63 - 1) -> int:
    """Return an integer in low..high; a float is an error even if it is whole."""
    try:
        number = operator.index(value)  # type: ignore[arg-type]
    except TypeError:
        number = None
    if number is None or isinstance(value, bool):
        refuse_type(name, "an integer", value)
    if not low <= number <= high:  # it is called for every encode with a limit
        limits = {f"at least {low}": number >= low, f"at most {high}": number <= high}
        _require_limits(name, number, limits)
    return number


def boolean(name: str, value: object) -> bool:
    if not isinstance(value, bool):
        refuse_type(name, "a bool", value)
    return value


def timeout(value: object, *, optional: bool = True) -> None:
    """Check a time to wait: positive, or None for the usual one; a number is an error."""
    if value is None and optional:
        return
    if not isinstance(value, timedelta):
        example = "a datetime.timedelta, such as timedelta(seconds=60)"
        refuse_type("timeout=", f"{example}{', or None' * optional}", value)
    if optional:
        _require_limits("timeout=", value, {"positive": value > timedelta()})


def choice(name: str, value: object, allowed: Collection[str]) -> str:
    if not isinstance(value, str):
        refuse_type(name, "a str", value)
    _require_limits(name, value, {f"one of {', '.join(sorted(allowed))}": value in allowed})
    return value


def keys(name: str, value: object, expected: Collection[str]) -> None:
    """Raise a TypeError unless it is a dict, a ValueError unless it has exactly these keys."""
    if not isinstance(value, dict):
        refuse_type(name, "a dict", value)
    differences = {"no": set(expected) - value.keys(), "also": value.keys() - set(expected)}
    problems = [
        f"{how} {', '.join(sorted(map(str, names)))}" for how, names in differences.items() if names
    ]
    require(
        not problems,
        "{} must have exactly the keys {}, got {}",
        *(name, ", ".join(sorted(expected)), ", ".join(problems) if value else "nothing"),
    )


class Check:
    """What an option must be: metadata of its type, by which `Checked` checks it.

    ``Annotated[int, Check(integer, low=1, high=8)]`` is an integer of 1 to 8.
    """

    def __init__(self, check: Callable[..., Any], **bounds: float) -> None:
        self._check, self._bounds = check, bounds

    def __call__(self, name: str, value: object) -> Any:
        return self._check(name, value, **self._bounds)

    def __repr__(self) -> str:
        bounds = "".join(f", {name}={bound}" for name, bound in self._bounds.items())
        return f"Check({self._check.__name__}{bounds})"


class Checked:
    """A dataclass that checks its fields by their types, when it is made.

    A checked value may have another form than the one that was given.
    """

    __slots__ = ()

    def __post_init__(self) -> None:
        kind: Any = type(self)
        for name, (check, optional) in _checks(kind).items():
            value = getattr(self, name)
            if not (optional and value is None):
                self._set(name, check(name, value))

    def _set(self, name: str, value: object) -> None:
        # Normalizes a field while the frozen instance is still being built.
        object.__setattr__(self, name, value)


@functools.cache
def _checks(kind: Any) -> dict[str, tuple[Callable[[str, object], object], bool]]:
    """Return the check of each field whose type says what it must be, and whether None is one.

    ``bool`` and ``Literal`` say it; other types have a `Check` in their metadata.
    """
    checks: dict[str, tuple[Callable[[str, object], object], bool]] = {}
    for field in filter(lambda field: field.init, dataclasses.fields(kind)):
        hint: Any = field.type
        union = isinstance(hint, types.UnionType) or get_origin(hint) is Union
        optional = union and type(None) in get_args(hint)
        for option in get_args(hint) if union else (hint,):
            if get_origin(option) is Literal:
                choose = functools.partial(choice, allowed=get_args(option))
                checks[field.name] = choose, optional
            elif option is bool:
                checks[field.name] = boolean, optional
            for check in getattr(option, "__metadata__", ()):
                if isinstance(check, Check):
                    checks[field.name] = check, optional
    return checks


Band = Annotated[tuple[float, float], Check(band)]
Bits = Annotated[int, Check(integer, low=1, high=8)]
Clip = Annotated[float, Check(positive, above=0)]  # an option that is None for no clipping
Count = Annotated[int, Check(integer, low=1)]
Entries = Annotated[int, Check(integer, low=1, high=MAX_NUMEL)]
NotNegative = Annotated[float, Check(positive)]
ProperShare = Annotated[float, Check(unit_interval, below=1)]  # in (0, 1)
Ratio = Annotated[float, Check(ratio)]
Seed = Annotated[int, Check(integer, low=0)]  # of 63 bits
Seed64 = Annotated[int, Check(integer, low=0, high=2**64 - 1)]
Share = Annotated[float, Check(unit_interval)]  # in (0, 1]
