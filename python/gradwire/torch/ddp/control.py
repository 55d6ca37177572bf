"""What ranks tell each other between steps: that all of them do the same thing now."""

import contextlib
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import numpy as np
import torch
import torch.distributed as dist

from gradwire.errors import GradwireError
from gradwire.torch.ddp.errors import ExchangeError
from gradwire.torch.ddp.groups import is_registered

__all__ = ["Control"]

_NBYTES = 64


class Control:
    """A channel beside the one for buckets: a message of one rank never meets a bucket of another.

    Gloo ends the process where two ranks are at collectives of different sizes. So each act begins
    with the name of the act, in a record of one length, and ranks that are at different acts read
    each other's names. Where a rank does not come at all, the others give up after the timeout.

    Parameters
    ----------
    group : torch.distributed.ProcessGroup
        One that nobody else uses.
    """

    def __init__(self, group: dist.ProcessGroup) -> None:
        self._group = group
        self._lost: str | None = None
        # Held until the group is gone: see all_gather.py.
        self._mine = torch.zeros(_NBYTES, dtype=torch.uint8)
        self._every = torch.zeros(_NBYTES * group.size(), dtype=torch.uint8)

    @contextlib.contextmanager
    def act(self, name: str) -> Iterator[dist.ProcessGroup]:
        """Do something on all ranks together, in a group in which nothing else is under way.

        What is done may raise a ValueError if it does so on every rank; any other exception gives
        the channel up, because other ranks may be waiting in it.

        Raises
        ------
        ExchangeError
            A rank did not come, or came for something else.
        """
        if self._lost is not None:
            raise ExchangeError(f"{name}: gradwire's control messages ended before: {self._lost}")
        self._meet(name)
        try:
            yield self._group
        except ValueError:
            raise
        except RuntimeError as error:
            self._lost = f"{name}: {error}"
            if isinstance(error, GradwireError):
                raise
            raise ExchangeError(f"{name} failed between the ranks ({error})") from error
        except BaseException as error:
            self._lost = f"{name}: {type(error).__name__}: {error}"
            raise

    def leave(self, name: str, timeout: timedelta) -> bool:
        """Tell whether all ranks came for a last act in time. There is none after it."""
        if self._lost is not None or not is_registered(self._group):
            return False
        backend: Any = self._group._get_backend(torch.device("cpu"))
        backend._set_default_timeout(timeout)
        try:
            self._meet(name)
        except ExchangeError:
            return False
        self._lost = name
        return True

    def _meet(self, name: str) -> None:
        mine = self._mine.numpy()
        mine[:] = 0
        data = name.encode()[:_NBYTES]
        mine[: len(data)] = np.frombuffer(data, np.uint8)
        try:
            dist.all_gather_into_tensor(self._every, self._mine, group=self._group)
        except RuntimeError as error:
            self._lost = f"{name}: {error}"
            raise ExchangeError(
                f"another rank did not come to {name}: it has stopped, failed, or does something "
                f"else ({str(error).strip()})"
            ) from error
        rows = self._every.view(self._group.size(), _NBYTES).numpy()
        for rank, row in enumerate(rows):
            theirs = row.tobytes().rstrip(b"\0").decode(errors="replace")
            if theirs != name:
                raise ExchangeError(f"rank {rank} is at {theirs}, this rank at {name}", rank)
