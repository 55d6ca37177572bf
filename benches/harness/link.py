"""Links between the ranks: shaped to a known speed, or the loopback device."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from types import TracebackType
from typing import Protocol, Self

from benches.harness.namespaces import LinkUnavailableError, NamespaceLink


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
