"""The process groups of one attachment: where they are made, and where they are left."""

import threading
from datetime import timedelta

import torch
import torch.distributed as dist

__all__ = ["Groups", "is_registered"]

_PATIENCE = 5.0
"""Seconds to wait for a group to end in which something may be under way."""


class Groups:
    """Makes groups of the same ranks as another one, and leaves all of them.

    What gradwire sends has groups of its own, so that DDP's collectives and ours cannot mix. Each
    costs three threads and five file descriptors, and torch keeps it until it is destroyed.

    Parameters
    ----------
    over : torch.distributed.ProcessGroup
        The ranks.
    timeout : datetime.timedelta, optional
        Of all collectives in the new groups; that of ``over`` by default.
    """

    def __init__(self, over: dist.ProcessGroup, timeout: timedelta | None) -> None:
        self._over = over
        self._timeout = timeout
        self._made: list[dist.ProcessGroup] = []

    def make(self) -> dist.ProcessGroup:
        """Make another group. A collective."""
        timeout = self._timeout
        if timeout is None:
            try:
                timeout = self._over._get_backend(torch.device("cpu")).options._timeout
            except (RuntimeError, AttributeError):
                timeout = None  # not Gloo: torch's default
        group = dist.new_group(
            dist.get_process_group_ranks(self._over),
            timeout=timeout,
            backend="gloo",
            use_local_synchronization=self._over is not dist.group.WORLD,
            group_desc="gradwire",
        )
        if not isinstance(group, dist.ProcessGroup):
            raise ValueError("this rank is not in the process group that it attaches a codec to")
        self._made.append(group)
        return group

    def leave(self) -> None:
        """Destroy all groups. The second time does nothing.

        Waits for no other rank; one that still reads is cut off. Something may be under way in the
        groups, which torch waits for when it destroys them: that happens on a thread of its own if
        it takes long. Groups that are gone already, because torch.distributed was shut down (and
        perhaps initialized again) in between, are only forgotten.
        """
        made, self._made = self._made, []
        made = [group for group in made if is_registered(group)]
        if not made:
            return
        thread = threading.Thread(target=_destroy, args=(made,), name="gradwire-leave", daemon=True)
        thread.start()
        thread.join(_PATIENCE)


def _destroy(groups: list[dist.ProcessGroup]) -> None:
    while groups:
        dist.destroy_process_group(groups.pop())


def is_registered(group: dist.ProcessGroup) -> bool:
    """Tell whether torch.distributed still has a group."""
    try:
        return dist.is_initialized() and bool(dist.get_process_group_ranks(group))
    except (KeyError, ValueError):
        return False
