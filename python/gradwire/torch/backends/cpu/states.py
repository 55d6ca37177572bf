"""States in the memory of the host, kept by the Rust core."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from gradwire.codec import Codec
    from gradwire.state import State

__all__ = ["init_state", "rollback"]


def init_state(codec: "Codec", numel: int, name: str | None, stream: int) -> "State":
    """Return a new state."""
    return codec.init_state(numel, name=name, stream=stream)


def rollback(states: Sequence["State"]) -> None:
    """Undo the last encode of each state."""
    for state in states:
        state.rollback()
