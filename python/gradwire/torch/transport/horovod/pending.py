"""Collectives of Horovod in progress."""

import contextlib
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from datetime import timedelta
from typing import Any

import torch

from gradwire.torch.transport.channel import Work
from gradwire.torch.transport.horovod.library import InternalError, LostRankError, library

__all__ = ["All", "Pending", "nothing", "starting"]

_SHORT, _LONG = 2e-4, 1e-3  # seconds between looks at a collective
_BRIEF = 50


class Pending:
    """A collective of Horovod in progress.

    Parameters
    ----------
    handle : int
    finish : callable
        Takes what Horovod returns, once.
    timeout : callable
        Returns how long to wait for other ranks, or None.
    """

    def __init__(
        self,
        handle: int,
        finish: Callable[[torch.Tensor], None],
        timeout: Callable[[], timedelta | None],
    ) -> None:
        self._handle = handle
        self._finish = finish
        self._timeout = timeout
        self._lock = threading.Lock()
        self._done = False
        self._failure: RuntimeError | None = None

    def wait(self) -> None:
        """Wait until it is done.

        Raises
        ------
        LostRankError
            Another rank has stopped, or did not take part in time.
        RuntimeError
            The ranks did not start the same collective.
        """
        with self._lock:
            if not self._done:
                self._await()
                self._done, self._finish = True, nothing  # what it holds may go
        if self._failure is not None:
            raise self._failure

    def _await(self) -> None:
        timeout = self._timeout()
        deadline = None if timeout is None else time.monotonic() + timeout.total_seconds()
        try:
            looks = 0
            while not library.poll(self._handle):
                if deadline is not None and time.monotonic() > deadline:
                    raise LostRankError(f"another rank did not take part within {timeout}")
                looks += 1
                time.sleep(_SHORT if looks < _BRIEF else _LONG)
            self._finish(library.synchronize(self._handle))
        except LostRankError as error:
            self._failure = error
        except InternalError as error:
            self._failure = _lost(error)
        except RuntimeError as error:
            self._failure = error
        except ValueError as error:  # what poll() raises for a handle of before hvd.shutdown()
            self._failure = _lost(error)


class All:
    """Several collectives, and what is to be done after all of them."""

    def __init__(self, works: Iterable[Work], finish: Callable[[], Any]) -> None:
        self._works = list(works)
        self._finish: Callable[[], Any] | None = finish
        self._lock = threading.Lock()

    def wait(self) -> None:
        """Wait until all of them are done."""
        with self._lock:
            for work in self._works:
                work.wait()
            if self._finish is not None:
                self._finish()
                self._finish = None


@contextlib.contextmanager
def starting() -> Iterator[None]:
    """Say what it means that Horovod starts no collective any more."""
    try:
        yield
    except InternalError as error:
        raise _lost(error) from error


def nothing(found: torch.Tensor) -> None:
    """Return: it was done in place."""


def _lost(error: Exception) -> LostRankError:
    lost = LostRankError(
        "Horovod exchanges nothing any more: another rank has stopped or failed, or Horovod was "
        f"shut down ({str(error).strip()})"
    )
    lost.__cause__ = error
    return lost
