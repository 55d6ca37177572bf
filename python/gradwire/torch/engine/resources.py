"""The threads and channels of one handle, and how they are released."""

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta

from gradwire.torch.engine.connection import Connection
from gradwire.torch.engine.pipeline import ExchangePipeline
from gradwire.torch.transport import Channel

__all__ = ["Resources"]

_PATIENCE = 1.0
"""Seconds that each thread has to end before the caller goes on."""


@dataclass(frozen=True, slots=True, eq=False)
class Resources:
    """What a handle must release. It keeps no reference to the handle, which may be collected."""

    worker: ExchangePipeline
    connection: Connection  # held until its channels are closed, which use its tensors

    def leave(self, timeout: timedelta, last: Callable[[Channel], None] | None = None) -> None:
        """Release everything once the other ranks do too, or after the timeout.

        If they do, all do something together before.
        """
        deadline = time.monotonic() + timeout.total_seconds()
        if not self.worker.settle(timeout.total_seconds()):
            self.worker.give_up()
        if self.worker.broken is None:
            left = max(deadline - time.monotonic(), 0.1)
            try:
                self.connection.control.leave("detach()", timedelta(seconds=left), last)
            finally:
                self.abandon()
            return
        self.abandon()

    def abandon(self) -> None:
        """End the threads and close the channels, without waiting for other ranks.

        A thread that waits for a collective ends only after the collective's timeout. The channels
        are then closed after that, on a thread of its own.
        """
        if self.worker.stop(_PATIENCE):
            self._leave()
        elif not self.worker.forked:
            later = self._leave_later
            threading.Thread(target=later, name="gradwire-leave", daemon=True).start()

    def _leave_later(self) -> None:
        self.worker.stop()
        self._leave()

    def _leave(self) -> None:
        self.connection.exchange.close()
        self.connection.transport.leave()
