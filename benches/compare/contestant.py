"""What every contestant does in a round: one training step's worth of compression.

An encode starts from a fresh gradient and the contestant's own residual and ends with what would
go on the wire and the residual brought up to date. That is the whole job, for everyone: a
selection alone is not something a training loop can use.
"""

from abc import ABC, abstractmethod
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float32]


class Contestant(ABC):
    """One way to compress, with its state for one tensor.

    ``setting`` says in a sentence how it was set up, and why that is its best fair form.
    """

    name: ClassVar[str]
    setting: ClassVar[str]
    # Whether the work is the full one, so that its link speed can be compared.
    whole: ClassVar[bool] = True

    def __init__(self, numel: int, ratio: float) -> None:
        self.numel = numel
        self.ratio = ratio
        self.target = max(1, int(numel * ratio))

    def settle(self, gradient: Array) -> None:  # noqa: B027
        """Get over a start that takes more steps than the warm-up has, before any round."""

    def ready(self, gradient: Array) -> None:  # noqa: B027
        """Do what must happen before an encode of this gradient and is no part of it."""

    @abstractmethod
    def encode(self, gradient: Array) -> Any:
        """Compress a gradient with error feedback and return what goes on the wire."""

    @abstractmethod
    def decode_add(self, wire: Any, out: Array) -> None:
        """Add what came over the wire into a dense tensor."""

    @abstractmethod
    def nbytes(self, wire: Any) -> int:
        """Return the bytes on the wire."""

    @abstractmethod
    def count(self, wire: Any) -> int:
        """Return how many entries were sent."""
