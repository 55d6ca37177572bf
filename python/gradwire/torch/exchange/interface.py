"""What the worker asks of an exchange."""

from collections.abc import Mapping
from typing import Protocol

from gradwire.torch.engine.metrics import StepTimes
from gradwire.torch.engine.step import BucketTask, InFlightBucket

__all__ = ["Exchange"]


class Exchange(Protocol):
    """Exchanges buckets: by frames between ranks, or inside nodes first and then so.

    Attributes
    ----------
    times : StepTimes
    """

    times: StepTimes

    @property
    def postpones(self) -> bool:
        """Whether states stay as they are until `complete`."""

    @property
    def carriers(self) -> Mapping[str, str]:
        """The kinds of devices on which frames stay, with what moves them."""

    @property
    def world_size(self) -> int:
        """Number of ranks between which frames go."""

    def start(self, job: BucketTask, sequence: int) -> InFlightBucket:
        """Start the exchange of a bucket. Runs in the sending thread."""

    def receive(self, flight: InFlightBucket) -> None:
        """Wait for a bucket and write the average into its buffer. Runs in the receiving thread.

        Raises
        ------
        GradientError, ExchangeError
            As `Exchange.receive` says.
        """

    def complete(self, flight: InFlightBucket) -> None:
        """Do what `receive` has left to do, now that the whole step is good on all ranks."""

    def close(self) -> None:
        """Release the channels, without closing them."""
