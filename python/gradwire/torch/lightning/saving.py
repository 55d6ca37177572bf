"""What checkpoints hold: the states of all ranks, in the form of `Handle.gathered_state_dict`."""

from collections.abc import Mapping
from datetime import timedelta
from typing import Any, Literal

import torch.distributed as dist

from gradwire.torch.ddp import Handle

__all__ = ["KEY", "Loaded", "Policy", "gathered"]

KEY = "gradwire"
"""The entry of a checkpoint."""

Policy = Literal["sum-and-split", "keep", "drop"]
"""Those of `Handle.load_state_dict` that fit the states of all ranks."""


def gathered(state: Mapping[str, Any], timeout: timedelta | None) -> dict[str, Any]:
    """Gather the states of handles that are detached. A collective.

    Parameters
    ----------
    state : mapping
        What `Handle.state_dict` returned on this rank.
    timeout : datetime.timedelta, optional
        How long to wait for the other ranks; by default, as long as torch does.

    Returns
    -------
    dict
        One entry per rank; empty on ranks other than 0.

    Raises
    ------
    RuntimeError
        Another rank did not call within the timeout.
    """
    rank, size = dist.get_rank(), dist.get_world_size()
    group: Any = dist.new_group(backend="gloo", timeout=timeout)
    try:
        states: list[Any] | None = [None] * size if rank == 0 else None
        dist.gather_object(dict(state), states, group=group)
    finally:
        dist.destroy_process_group(group)
    return {key: value for each in states or () for key, value in each.items()}


class Loaded:
    """The states of a checkpoint, until there is a handle for them.

    Parameters
    ----------
    saved : mapping
        The states of all ranks that saved.
    rank, world_size : int
        This rank and the number of ranks: if it is that of the checkpoint, the states of the other
        ranks are not kept.
    """

    def __init__(self, saved: Mapping[str, Any], rank: int, world_size: int) -> None:
        own = f"rank{rank}"
        alike = len(saved) == world_size and own in saved
        self._states = {own: saved[own]} if alike else dict(saved)

    def into(self, handle: Handle, policy: Policy) -> None:
        """Load them. A collective.

        Raises
        ------
        ValueError
            On every rank, if they do not fit the model, the codec or the policy.
        """
        try:
            handle.load_state_dict(self._states, policy)
        except ValueError as error:
            raise ValueError(
                f"the residuals of the checkpoint do not fit: {error}. To resume without them, "
                f"pass Compress(..., checkpoints=False), or remove its entry {KEY!r}"
            ) from error
