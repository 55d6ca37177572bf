"""Notices a program that changes gradients while they are being exchanged."""

from collections.abc import Sequence

import torch

from gradwire.torch.errors import UpdateError

__all__ = ["GradChangeDetector", "raise_changed"]


class GradChangeDetector:
    """The gradients of a bucket at the moment when they are read for an exchange.

    Averages will replace them. So whatever is done to them before, as by clipping, would be lost
    without a trace. A loss scaler does it in a way that is not seen here.
    """

    def __init__(self, tensors: Sequence[torch.Tensor]) -> None:
        self._tensors = tensors
        self._read = [_version(each) for each in tensors]

    def changed(self) -> torch.Tensor | None:
        """Return a parameter whose gradient is not what it was."""
        for tensor, read in zip(self._tensors, self._read, strict=True):
            if _version(tensor) != read:
                return tensor
        return None


def raise_changed(name: str) -> None:
    """Raise the error that says what to do."""
    raise UpdateError(
        f"the gradient of {name!r} was changed while it was being exchanged, as by clipping, and "
        "the average has taken its place: call optimizer.synchronize() before, and step() within "
        "optimizer.skip_synchronize(). Call zero_grad() now to drop this pass"
    )


def _version(tensor: torch.Tensor) -> tuple[int, int] | None:
    gradient = tensor.grad
    return None if gradient is None else (id(gradient), int(gradient._version))
