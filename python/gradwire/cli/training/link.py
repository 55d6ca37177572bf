"""Links between the ranks: shaped to a known speed, or the loopback device."""

from __future__ import annotations

import re
import sys
from dataclasses import dataclass
from types import TracebackType
from typing import Protocol, Self

from gradwire.cli.training.namespaces import LinkUnavailableError, NamespaceLink

_UNITS = {"": 1.0, "k": 1e3, "m": 1e6, "g": 1e9, "t": 1e12}


def parse_rate(text: str) -> int:
    """Parse a rate such as ``100mbit``, ``1gbit`` or ``2.5Gbit/s``; return bits per second.

    Raises
    ------
    ValueError
        If the text is not a positive rate.
    """
    match = re.fullmatch(
        r"\s*([0-9]*\.?[0-9]+)\s*([kmgt]?)(?:bit|bps)?(?:/s)?\s*", text, re.IGNORECASE
    )
    rate = round(float(match[1]) * _UNITS[match[2].lower()]) if match else 0
    if rate < 1000:
        raise ValueError(
            f"{text!r} is not a bandwidth: give a number and kbit, mbit or gbit, such as 100mbit"
        )
    return rate


def format_rate(rate: float) -> str:
    """Format a rate in bits per second for reading: ``100 Mbit/s``."""
    for unit, size in (("Tbit/s", 1e12), ("Gbit/s", 1e9), ("Mbit/s", 1e6), ("kbit/s", 1e3)):
        if rate >= 0.9995 * size:
            return (
                f"{rate / size:.3g} {unit}" if rate < 999.5 * size else f"{rate / size:.0f} {unit}"
            )
    return f"{rate:.0f} bit/s"


class Link(Protocol):
    """A link between the ranks."""

    shaped: bool
    interface: str

    def command_prefix(self, rank: int, *, inside: bool = False) -> list[str]:
        """Return the prefix that makes a command run in the rank's network namespace.

        With ``inside``, for a command that is given in another rank's namespace.
        """

    def address(self, rank: int) -> str:
        """Return the rank's own address."""

    def set_rate(self, bits_per_second: int) -> None:
        """Shape both directions of the link to this rate."""

    def close(self) -> None:
        """Remove everything. Idempotent."""

    def __enter__(self) -> Self: ...

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        where: TracebackType | None,
    ) -> None: ...


@dataclass
class Loopback:
    """All ranks on the machine's own loopback device, at whatever speed that has."""

    shaped: bool = False
    interface: str = "lo" if sys.platform.startswith("linux") else "lo0"

    def command_prefix(self, rank: int, *, inside: bool = False) -> list[str]:
        """Return an empty prefix: all ranks share this namespace."""
        return []

    def address(self, rank: int) -> str:
        """Return the loopback address, the same for all ranks."""
        return "127.0.0.1"

    def set_rate(self, bits_per_second: int) -> None:
        """Raise LinkUnavailableError."""
        raise LinkUnavailableError(
            "the loopback device is never shaped: it belongs to the whole machine"
        )

    def close(self) -> None:
        """Do nothing: nothing was created."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        where: TracebackType | None,
    ) -> None:
        self.close()


def open_link(ranks: int) -> tuple[Link, str | None]:
    """Return a shaped link and None, or the loopback device and the reason for it."""
    try:
        return NamespaceLink(ranks), None
    except LinkUnavailableError as error:
        return Loopback(), str(error)
