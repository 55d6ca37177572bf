"""Horovod itself, and the error by which its elastic training knows that ranks were lost."""

from typing import Any

from gradwire.torch.errors import ExchangeError

try:
    import horovod.torch as hvd
    from horovod.common.exceptions import HorovodInternalError, HostsUpdatedInterrupt
    from horovod.torch import mpi_ops
except ImportError as error:
    raise ImportError(
        "gradwire.torch.horovod needs Horovod 0.28 built for this PyTorch: its last release builds "
        f"against today's torch only with the changes that docs/horovod.md describes ({error})"
    ) from error

__all__ = [
    "HostsUpdated",
    "InternalError",
    "LostRankError",
    "check_initialized",
    "initialization",
    "library",
]

library: Any = hvd
"""Horovod for torch, which has no types."""

InternalError: Any = HorovodInternalError
"""What Horovod raises when it has lost a rank, or was shut down."""

HostsUpdated: Any = HostsUpdatedInterrupt
"""What Horovod raises when ranks are to join or leave."""


class LostRankError(ExchangeError, InternalError):  # type: ignore[misc]  # it has no types
    """An `ExchangeError` because a rank has stopped or did not take part in time.

    Also a ``HorovodInternalError``: ``hvd.elastic.run`` restores the last commit after it, and goes
    on with the ranks that are left.
    """


def check_initialized() -> None:
    """Raise a ValueError unless ``hvd.init()`` was called."""
    if not hvd.is_initialized():
        raise ValueError("Horovod is not initialized: call hvd.init() first")


def initialization() -> object:
    """Return an object that Horovod replaces whenever it is initialized: its map of handles."""
    return mpi_ops._handle_map
