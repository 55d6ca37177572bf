"""Parse sizes, times, rates and ranges of the command line."""

import argparse
import math
import re

_COUNTS = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9, "b": 10**9, "t": 10**12}
_RATES = {"": 1.0, "k": 1e3, "m": 1e6, "g": 1e9, "t": 1e12}
_TIMES = {"ns": 1e-9, "us": 1e-6, "µs": 1e-6, "ms": 1e-3, "s": 1.0}
_BITS = {"Tbit/s": 1e12, "Gbit/s": 1e9, "Mbit/s": 1e6, "kbit/s": 1e3}
_MOST = 10**12
_MOST_RANKS = 1_000_000


def count(text: str) -> int:
    """Parse a number of things, such as ``25M``."""
    match = re.fullmatch(r"([0-9]*\.?[0-9]+)([kmgbt]?)", text.strip().lower())
    number = float(match[1]) * _COUNTS[match[2]] if match else 0.0
    if number > _MOST:
        shown = text if len(text) <= 30 else f"{text[:27]}..."
        raise argparse.ArgumentTypeError(f"{shown!r} is more than 10**12, the largest accepted")
    if round(number) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of 1 or more, such as 25M")
    return round(number)


def seconds(text: str) -> float:
    """Parse a time, such as ``50us`` or ``0.1s``."""
    match = re.fullmatch(r"([0-9]*\.?[0-9]+(?:e-?[0-9]+)?)\s*(ns|us|µs|ms|s)", text.strip().lower())
    time = float(match[1]) * _TIMES[match[2]] if match else math.nan
    if re.fullmatch(r"0*\.?0+", text.strip()):
        time = 0.0  # in any unit
    if not math.isfinite(time):
        raise argparse.ArgumentTypeError(
            f"{text!r} is not a time: give a number and us, ms or s, such as 100ms"
        )
    return time


def bare_seconds(text: str) -> float:
    """Parse the time of an option whose name says seconds: ``0.2`` is ``0.2s``."""
    return seconds(f"{text}s" if re.fullmatch(r"[0-9]*\.?[0-9]+", text.strip()) else text)


def rate(text: str) -> int:
    """Parse a rate such as ``100mbit``, ``1gbit`` or ``2.5Gbit/s``; return bits per second."""
    match = re.fullmatch(
        r"\s*([0-9]*\.?[0-9]+)\s*([kmgt]?)(?:bit|bps)?(?:/s)?\s*", text, re.IGNORECASE
    )
    speed = round(float(match[1]) * _RATES[match[2].lower()]) if match else 0
    if speed < 1000:
        raise argparse.ArgumentTypeError(
            f"{text!r} is not a bandwidth: give a number and kbit, mbit or gbit, such as 100mbit"
        )
    return speed


def ranks(text: str) -> list[int]:
    """Parse numbers of ranks: ``2,8,64``, or ``2..10000`` for the ends and powers of two."""
    found: set[int] = set()
    for part in text.split(","):
        first, dots, last = part.strip().partition("..")
        ends = [first, last] if dots else [first]
        if not all(end.isdecimal() and 1 <= int(end) <= _MOST_RANKS for end in ends) or (
            dots and int(first) > int(last)
        ):
            raise argparse.ArgumentTypeError(
                f"{text!r} is not a number of ranks: give a list such as 2,8,64, or a range such "
                f"as 2..10000, from 1 to {_MOST_RANKS}"
            )
        numbers = [int(end) for end in ends]
        found |= {*numbers} | {
            1 << power for power in range(20) if numbers[0] <= 1 << power <= numbers[-1]
        }
    return sorted(found)


def names(text: str) -> list[str]:
    """Parse a list of names."""
    found = list(dict.fromkeys(part.strip() for part in text.split(",") if part.strip()))
    if not found:
        raise argparse.ArgumentTypeError(f"{text!r} is not a list of names")
    return found


def ratio(text: str) -> float:
    """Parse a share of the entries."""
    try:
        number = float(text)
    except ValueError:
        number = 0.0
    if not 0.0 < number <= 1.0:
        raise argparse.ArgumentTypeError(
            f"{text!r} is not a ratio: give a number above 0 and at most 1, such as 0.01"
        )
    return number


def duration(time: float) -> str:
    """Format a time in seconds: ``50.1 ms``."""
    units = {"s": 1.0, "ms": 1e-3}
    return _with_unit(time, units) or f"{time * 1e6:.3g} µs"


def size(nbytes: float) -> str:
    """Format a number of bytes: ``1.27 MB``."""
    units = {"TB": 1e12, "GB": 1e9, "MB": 1e6, "kB": 1e3}
    return _with_unit(nbytes, units) or f"{nbytes:.0f} B"


def format_rate(speed: float) -> str:
    """Format a rate in bits per second: ``100 Mbit/s``."""
    return _with_unit(speed, _BITS) or f"{speed:.0f} bit/s"


def format_rates(low: float, high: float) -> str:
    """Format a range that may begin at 0 and have no end: ``> 20 Mbit/s``, ``0.02..3 Gbit/s``."""
    if low == 0.0:
        return format_rate(high)
    if math.isinf(high):
        return f"> {format_rate(low)}"
    unit = format_rate(high).split()[-1]
    return f"{low / _BITS.get(unit, 1.0):.3g}..{format_rate(high)}"


def _with_unit(value: float, units: dict[str, float]) -> str | None:
    """Format a value in the largest unit that it reaches, with three digits."""
    for unit, least in units.items():
        if value >= 0.9995 * least:
            number = value / least
            return f"{number:.3g} {unit}" if number < 999.5 else f"{number:,.0f} {unit}"
    return None
