"""Buckets of any device: a copy on the host is encoded and overwritten, and copied back."""

from typing import Any

import torch

from gradwire.torch.backends.cpu import buckets as cpu
from gradwire.torch.backends.host.staging import staging

__all__ = ["Bucket", "bucket"]


def bucket(buffer: torch.Tensor, carried: bool = False) -> "Bucket":
    """Return a bucket that will be copied once its gradients are there."""
    del carried  # frames are where the core is
    return Bucket(buffer)


class Bucket(cpu.Bucket):
    """A bucket that the core reads and writes in a copy.

    The sending thread makes the copy when it first needs it, and waits for the device there. The
    copy back is only given to the device, and the future is resolved after it in its order.
    """

    __slots__ = ("_after", "_staged", "_staging")

    def __init__(self, buffer: torch.Tensor) -> None:
        self._staging = staging(buffer.device)
        super().__init__(buffer, self._staging.future())
        self._after: Any = self._staging.mark()
        self._staged: torch.Tensor | None = None

    @property
    def values(self) -> torch.Tensor:
        """The copy on the host."""
        if self._staged is None:
            self._staged = self._staging.fetch(self.buffer, self._after)
        return self._staged

    def wait(self) -> None:
        """Wait for what the caller's stream was given until the bucket was made."""
        self._staging.wait(self._after)

    def store(self, result: torch.Tensor | None = None) -> None:
        """Copy the averages, or a sparse result, to the device."""
        with self._staging.writing(self._after):
            if result is not None:
                self._result = result.to(self.buffer.device)
            else:
                self._staging.write(self.buffer, self.values)
        self._staged = None

    def resolve(self, *, poisoned: bool) -> None:
        """Resolve the future after the copy."""
        with self._staging.writing(self._after):
            super().resolve(poisoned=poisoned)
        # The caller may free it without having waited for the future, as after an error.
        self._staging.keep(self.buffer)
        self._staged = None
