"""Argument checks whose messages name the argument, the expected value and the given one."""

import math
import operator
import reprlib
from collections.abc import Callable, Collection
from datetime import timedelta
from numbers import Integral, Real
from typing import Annotated, Any

MAX_NUMEL = 2**32 - 1  # maximum number of entries of a tensor: positions have 32 bits


def real(name: str, value: object) -> float:
    """Return a real number as a float; numpy scalars are accepted, bool and str are not."""
    if isinstance(value, bool) or not isinstance(value, Real):
        raise TypeError(
            f"{name} must be a real number, got {reprlib.repr(value)} ({type(value).__name__})"
        )
    try:
        return float(value)
    except OverflowError:
        raise ValueError(f"{name} must fit in a float64, got {value!r}") from None


def unit_interval(name: str, value: object, *, below: float = math.inf) -> float:
    """Return a number in the interval (0, 1], or with ``below=1`` in (0, 1)."""
    number = real(name, value)
    if not 0.0 < number <= 1.0:
        raise ValueError(f"{name} must be greater than 0 and at most 1, got {value!r}")
    return positive(name, number, below=below)


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
    for limit, holds in limits.items():
        if not holds:
            raise ValueError(f"{name} must be {limit}, got {value!r}")
    return number


def clip(name: str, value: object) -> float:
    """Return a finite number > 0, for an option that is None for no clipping."""
    return positive(name, value, above=0)


def either(what: str, **options: object) -> None:
    """Check that exactly one of two options is given, and the other one None."""
    if sum(value is not None for value in options.values()) != 1:
        names = " or ".join(f"{name}=" for name in options)
        given = " and ".join(f"{name}={value!r}" for name, value in options.items())
        raise TypeError(f"{what} takes either {names}, got {given}")


def band(name: str, value: object) -> tuple[float, float]:
    """Return a pair of finite numbers (low, high) with 0 <= low <= 1 <= high."""
    if not isinstance(value, tuple | list) or len(value) != 2:
        raise TypeError(f"{name} must be a pair (low, high) or None, got {value!r}")
    low, high = (positive(f"{name}[{i}]", bound) for i, bound in enumerate(value))
    if not low <= 1.0 <= high:
        raise ValueError(f"{name} must be (low, high) with 0 <= low <= 1 <= high, got {value!r}")
    return low, high


def integer(name: str, value: object, *, low: int, high: int = 2**63 - 1) -> int:
    """Return an integer in low..high; a float is an error even if it is whole."""
    if isinstance(value, bool):
        raise TypeError(f"{name} must be an integer, got {value!r} (bool)")
    try:
        number = operator.index(value)  # type: ignore[arg-type]
    except TypeError:
        raise TypeError(
            f"{name} must be an integer, got {reprlib.repr(value)} ({type(value).__name__})"
        ) from None
    if number < low:
        raise ValueError(f"{name} must be at least {low}, got {number}")
    if number > high:
        raise ValueError(f"{name} must be at most {high}, got {number}")
    return number


def boolean(name: str, value: object) -> bool:
    """Return a bool; an integer is an error."""
    if not isinstance(value, bool):
        raise TypeError(f"{name} must be a bool, got {value!r} ({type(value).__name__})")
    return value


def timeout(value: object, *, optional: bool = True) -> None:
    """Check a time to wait: positive, or None for the usual one; a number is an error."""
    if value is None and optional:
        return
    if not isinstance(value, timedelta):
        raise TypeError(
            "timeout= takes a datetime.timedelta, such as timedelta(seconds=60)"
            f"{', or None' * optional}, got {value!r} ({type(value).__name__})"
        )
    if optional and value <= timedelta():
        raise ValueError(f"timeout= must be positive, got {value!r}")


def choice(name: str, value: object, allowed: Collection[str]) -> str:
    """Return one of the allowed strings."""
    if not isinstance(value, str):
        raise TypeError(f"{name} must be a str, got {value!r} ({type(value).__name__})")
    if value not in allowed:
        raise ValueError(f"{name} must be one of {', '.join(sorted(allowed))}, got {value!r}")
    return value


def keys(name: str, value: dict[str, Any], expected: Collection[str]) -> None:
    """Raise a `ValueError` unless a dict has exactly the expected keys."""
    differences = {"no": set(expected) - value.keys(), "also": value.keys() - set(expected)}
    told = [
        f"{how} {', '.join(sorted(map(str, each)))}" for how, each in differences.items() if each
    ]
    if told:
        raise ValueError(
            f"{name} must have exactly the keys {', '.join(sorted(expected))}, got "
            + (", ".join(told) if value else "nothing")
        )


class Check:
    """What an option must be: metadata of its type, by which `gradwire._part.Part` checks it.

    ``Annotated[int, Check(integer, low=1, high=8)]`` is an integer of 1 to 8.
    """

    def __init__(self, check: Callable[..., Any], **bounds: float) -> None:
        self._check, self._bounds = check, bounds

    def __call__(self, name: str, value: object) -> Any:
        """Return the value, or another form of it that the option stands for."""
        return self._check(name, value, **self._bounds)

    def __repr__(self) -> str:
        bounds = "".join(f", {name}={bound}" for name, bound in self._bounds.items())
        return f"Check({self._check.__name__}{bounds})"


Band = Annotated[tuple[float, float], Check(band)]
Clip = Annotated[float, Check(clip)]
Entries = Annotated[int, Check(integer, low=1, high=MAX_NUMEL)]
ProperShare = Annotated[float, Check(unit_interval, below=1)]  # in (0, 1)
Ratio = Annotated[float, Check(ratio)]
Seed = Annotated[int, Check(integer, low=0)]  # of 63 bits
Seed64 = Annotated[int, Check(integer, low=0, high=2**64 - 1)]
Share = Annotated[float, Check(unit_interval)]  # in (0, 1]
