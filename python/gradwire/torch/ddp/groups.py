"""Makes and destroys the process groups of one attachment."""

import threading
from datetime import timedelta

import torch.distributed as dist

__all__ = ["Groups", "is_registered"]

_PATIENCE = 5.0
"""Seconds to wait for the destruction of groups in which collectives may be in progress."""


class Groups:
    """Makes process groups of the same ranks as a given one, and destroys them.

    gradwire uses its own groups, so that its collectives cannot mix with those of DDP. Each group
    costs three threads and five file descriptors, and torch keeps it until it is destroyed.

    Parameters
    ----------
    over : torch.distributed.ProcessGroup
        A group of these ranks.
    timeout : datetime.timedelta, optional
        Timeout of all collectives in the new groups. Defaults to that of ``over``.
    """

    def __init__(self, over: dist.ProcessGroup, timeout: timedelta | None) -> None:
        self._over = over
        self._timeout = timeout
        self._made: list[dist.ProcessGroup] = []

    def make(self) -> dist.ProcessGroup:
        """Make another group. A collective."""
        timeout = self._timeout
        if timeout is None:
            timeout = _timeout(self._over)
        group = dist.new_group(
            dist.get_process_group_ranks(self._over),
            timeout=timeout,
            backend="gloo",
            use_local_synchronization=self._over is not dist.group.WORLD,
            group_desc="gradwire",
        )
        if not isinstance(group, dist.ProcessGroup):
            raise ValueError("this rank is not in the process group passed to attach()")
        self._made.append(group)
        return group

    def leave(self) -> None:
        """Destroy all groups. A second call has no effect.

        Does not wait for other ranks; a rank that still reads is cut off. When torch destroys a
        group, it waits for collectives in progress; if that takes long, it continues on a thread of
        its own. Groups that no longer exist, because torch.distributed was shut down (and perhaps
        initialized again) in between, are only dropped.
        """
        made, self._made = self._made, []
        made = [group for group in made if is_registered(group)]
        if not made:
            return
        thread = threading.Thread(target=_destroy, args=(made,), name="gradwire-leave", daemon=True)
        thread.start()
        thread.join(_PATIENCE)


def _timeout(group: dist.ProcessGroup) -> timedelta | None:
    """Return the timeout of a group; None for torch's default if it does not tell."""
    for device in group._device_types:
        try:
            timeout: timedelta = group._get_backend(device).options._timeout
        except (RuntimeError, AttributeError):
            continue
        return timeout
    return None


def _destroy(groups: list[dist.ProcessGroup]) -> None:
    while groups:
        dist.destroy_process_group(groups.pop())


def is_registered(group: dist.ProcessGroup) -> bool:
    """Tell whether torch.distributed still has a group."""
    try:
        return dist.is_initialized() and bool(dist.get_process_group_ranks(group))
    except (KeyError, ValueError):
        return False
