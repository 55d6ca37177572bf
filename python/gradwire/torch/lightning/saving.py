"""The content of checkpoints: the states of all ranks, or the name of their folder."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

from gradwire.torch.checkpoint import files as rank_files
from gradwire.torch.ddp import Handle

KEY = "gradwire"  # the entry of a checkpoint
_FOLDER = "folder"

Policy = Literal["sum-and-split", "keep", "drop"]  # those that fit the states of all ranks


def written(handle: Handle, folder: Path, name: str) -> dict[str, Any]:
    """Write this rank's state to a folder of this name; return the checkpoint's entry."""
    there = folder / name
    there.mkdir(parents=True, exist_ok=True)
    rank_files.save(handle, there)
    return {_FOLDER: name}


class Loaded:
    """The states of a checkpoint, until there is a handle for them.

    ``saved`` is what `Handle.gathered_state_dict`, `rank_files.gathered` or `written` returned. If
    the ranks, and the ``shares`` of each node in a hierarchy, are those of the checkpoint, the
    states of the other ranks are not kept. States in files need their folder.
    """

    def __init__(
        self,
        saved: Mapping[str, Any],
        rank: int,
        world_size: int,
        shares: int,
        folder: Path | None,
    ) -> None:
        own = f"rank{rank}"
        alike = len(saved) == world_size and own in saved
        alike = alike and rank_files.shares_of(saved[own]) == shares
        self._states = {own: saved[own]} if alike else dict(saved)
        self._files: Path | None = None
        if _FOLDER in saved:
            if folder is None:
                raise ValueError(
                    "the residuals of the checkpoint are in separate files: pass the folder, which "
                    f"has {saved[_FOLDER]!r}, as Compress(..., checkpoints=folder)"
                )
            self._files = folder / saved[_FOLDER]

    def into(self, handle: Handle, policy: Policy) -> None:
        """Load the states into a handle, or raise a ValueError on every rank. A collective."""
        try:
            if self._files is None:
                handle.load_state_dict(self._states, policy)
            elif not rank_files.load(handle, self._files, policy):
                raise ValueError(f"there are none in {self._files}")
        except ValueError as error:
            raise ValueError(
                f"the residuals of the checkpoint do not fit: {error}. To resume without them, "
                f"pass Compress(..., checkpoints=False), or remove its entry {KEY!r}"
            ) from error
