"""One exchange of a fragment."""

from dataclasses import dataclass

import torch

from gradwire.torch.collective.calls import Started
from gradwire.torch.errors import GradientError, TensorError, fresh

__all__ = ["Flight"]


@dataclass(slots=True, eq=False)
class Flight:
    """One exchange: under way, or with what it has brought.

    Attributes
    ----------
    number : int
    started : Started or None
        None if it was settled before this rank, or this run, began.
    own : list of torch.Tensor or None
        This rank's own parameters as they were when it was sent, if what it trains in the meantime
        is to be carried.
    means : list of torch.Tensor or None
        The averages, when they have arrived.
    failure : TensorError or None
        Why there are none, on all ranks alike.
    """

    number: int
    started: Started | None = None
    own: list[torch.Tensor] | None = None
    means: list[torch.Tensor] | None = None
    failure: TensorError | None = None

    @property
    def arrived(self) -> bool:
        """Whether it was settled, and is to be applied."""
        return self.means is not None or self.failure is not None

    def settle(self) -> None:
        """Wait for the averages, and keep them.

        Raises
        ------
        ExchangeError
            It was lost.
        """
        if self.arrived:
            return
        assert self.started is not None
        try:
            self.means = self.started.averages()
        except GradientError as error:
            self.failure = TensorError(error.count, error.first, error.name, error.rank)

    def averages(self) -> list[torch.Tensor]:
        """Wait, and return the averages, or raise the TensorError."""
        self.settle()
        if self.means is None:
            assert self.failure is not None
            raise fresh(self.failure) from None
        return self.means
