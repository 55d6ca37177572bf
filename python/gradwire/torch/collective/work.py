"""An average under way."""

from collections.abc import Sequence
from typing import Literal

import torch

from gradwire.torch.engine.engine import Started
from gradwire.torch.errors import GradientError, TensorError

__all__ = ["Op", "Work"]

Op = Literal["mean", "sum"]
"""What takes the place of the tensors."""


class Work:
    """What an asynchronous `all_reduce` returns. The tensors change in `wait`, and only there.

    Parameters
    ----------
    started : Started
    into : sequence of (sequence of torch.Tensor)
        The tensors of each bucket.
    factor : float
        What averages are multiplied with.
    """

    def __init__(
        self, started: Started, into: Sequence[Sequence[torch.Tensor]], factor: float
    ) -> None:
        self._started: Started | None = started
        self._into = into
        self._factor = factor

    def is_completed(self) -> bool:
        """Tell whether `wait` would return at once."""
        return self._started is None or self._started.done

    def wait(self) -> None:
        """Wait for the other ranks, and write the results. A second call has no effect.

        Raises
        ------
        TensorError
            A tensor was NaN or infinite on some rank.
        AgreementError
            The ranks called with other tensors or codecs.
        ExchangeError
            Another rank has stopped, did not call in time, or could not encode. The `Reducer` is
            then broken.
        """
        started, self._started = self._started, None
        if started is None:
            return
        try:
            buffers = started.averages()
        except GradientError as error:
            raise TensorError(error.count, error.first, error.name, error.rank) from None
        with torch.no_grad():
            for tensors, buffer in zip(self._into, buffers, strict=True):
                if self._factor != 1.0:
                    buffer.mul_(self._factor)
                parts = torch.split(buffer, [each.numel() for each in tensors])
                for tensor, part in zip(tensors, parts, strict=True):
                    tensor.copy_(part.view(tensor.shape))
