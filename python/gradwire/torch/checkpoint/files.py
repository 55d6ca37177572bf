"""The states of all ranks as files in one folder: each rank writes its own."""

import contextlib
import json
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from gradwire import _files
from gradwire.torch.checkpoint.format import Policy
from gradwire.torch.checkpoint.gather import gather
from gradwire.torch.engine.handle import Handle
from gradwire.torch.transport import ProcessGroupChannel, ProcessGroups


def save(handle: Handle, folder: Path) -> None:
    """Write this rank's state. Call it on every rank, between steps.

    A killed rank leaves a complete file or none. Raises an OSError if the file cannot be
    written, as on a full disk; what was there stays.
    """
    state = handle.state_dict()
    with _files.replacing(_path(folder, handle.rank)) as file:
        try:
            torch.save(state, file)
        except RuntimeError as error:  # of the archive, which is cut short when the disk is full
            if not isinstance(error.__context__, OSError):
                raise
            raise error.__context__ from None


def load(handle: Handle, folder: Path, policy: Policy) -> bool:
    """Restore the files of `save`, also on another number of ranks. A collective.

    False if no rank finds a file. Raises a ValueError on every rank if files are missing, damaged
    or of different runs. Nothing changes in either case.
    """
    states: list[dict[str, Any]] = []
    problem = None
    try:
        states = _read(folder, handle.rank, handle.world_size, handle.ranks_per_node)
    except Exception as error:  # of any kind: the other ranks wait for the answer
        problem = f"{type(error).__name__}: {error}"
    with _messages(None) as channel:
        answers = channel.all_gather_object((bool(states), problem))
    for rank, (_, problem) in enumerate(answers):
        if problem is not None:
            raise ValueError(
                f"rank {rank} cannot read its residuals in {folder}, so no rank changes anything: "
                f"{problem}. Resume from another checkpoint"
            )
    if not any(there for there, _ in answers):
        return False
    handle.load_state_dict(states or None, policy)
    return True


def gathered(
    handle: Handle, to: int | None = 0, timeout: timedelta | None = None
) -> dict[str, Any]:
    """Return `Handle.gathered_state_dict`, also of detached handles. A collective.

    If detached, it raises a RuntimeError if another rank does not call within the timeout, by
    default that of torch.
    """
    if handle.attached:
        return handle.gathered_state_dict(to)
    state = handle.state_dict()
    with _messages(timeout) as channel:
        return gather(state, channel, to)


@contextlib.contextmanager
def _messages(timeout: timedelta | None) -> Iterator[ProcessGroupChannel]:
    """Connect all ranks for a block, even if their handles are detached."""
    world = dist.group.WORLD
    assert world is not None  # the ranks have trained together
    groups = ProcessGroups(world, timeout)
    try:
        yield groups.make()
    finally:
        groups.leave()


def _read(folder: Path, rank: int, world_size: int, shares: int) -> list[dict[str, Any]]:
    """Return this rank's state, or with other ranks or nodes those of all old ranks."""
    # Rank 0 first: files of further ranks may be left of an earlier save into this folder.
    for first in dict.fromkeys((0, rank)):
        path = _path(folder, first)
        if not path.exists():
            continue
        saved = _load(path)
        about = json.loads(saved[f"rank{first}"]["about"])
        old = about["world_size"]
        if old != world_size or about.get("shares", 1) != shares:
            every = [_path(folder, rank) for rank in range(old)]
            return [_load(path) for path in every if path.exists()]
        if first == rank:
            return [saved]
        if not _path(folder, rank).exists():
            raise FileNotFoundError(f"there is no {_path(folder, rank).name}")
    return []


def _load(path: Path) -> dict[str, Any]:
    saved: dict[str, Any] = torch.load(path, map_location="cpu", weights_only=True, mmap=True)
    return saved


def _path(folder: Path, rank: int) -> Path:
    return folder / f"gradwire_{rank}.pt"
