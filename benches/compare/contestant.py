"""What every contestant does in a round: one training step's worth of compression.

An encode takes a new gradient and the contestant's own residual, and produces the bytes to send and
the updated residual. All contestants do this whole job: a training loop cannot use a selection
alone.
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
        """Run the steps that a long start-up needs, before any round."""

    def ready(self, gradient: Array) -> None:  # noqa: B027
        """Prepare for the encode of this gradient, outside the time measured."""

    @abstractmethod
    def encode(self, gradient: Array) -> Any:
        """Compress a gradient with error feedback and return the message to send."""

    @abstractmethod
    def decode_add(self, wire: Any, out: Array) -> None:
        """Add a received message to a dense tensor."""

    @abstractmethod
    def nbytes(self, wire: Any) -> int:
        """Return the number of bytes to send."""

    @abstractmethod
    def count(self, wire: Any) -> int:
        """Return the number of entries sent."""
