"""The passes before one step: which gradients have come, and which buckets are due."""

from collections.abc import Callable, Iterator, Sequence

import torch

from gradwire.torch.errors import UpdateError

__all__ = ["BucketReadiness"]


class BucketReadiness:
    """The backward passes whose gradients are exchanged together.

    Buckets are due in their own order, whatever the order in which gradients come: that may differ
    between ranks.

    Attributes
    ----------
    buckets : list of list of torch.Tensor
        The buckets of this turn, with the parameters that require gradients.
    since : float or None
        When the first bucket was due, if it had to wait.

    Parameters
    ----------
    buckets : sequence of sequence of torch.Tensor
        All buckets, in the order of exchange, which all ranks share.
    passes : int
        Backward passes before a gradient is complete.
    name_of : callable
        Returns the name of a parameter.
    """

    def __init__(
        self,
        buckets: Sequence[Sequence[torch.Tensor]],
        passes: int,
        name_of: Callable[[torch.Tensor], str],
    ) -> None:
        active = [[each for each in bucket if each.requires_grad] for bucket in buckets]
        self.buckets = [bucket for bucket in active if bucket]
        self.since: float | None = None
        self._passes = passes
        self._name_of = name_of
        self._counts: dict[int, int] = {}
        self._bucket_of = {
            id(each): index for index, bucket in enumerate(self.buckets) for each in bucket
        }
        self._missing = [len(bucket) for bucket in self.buckets]
        self._next = 0

    @property
    def begun(self) -> bool:
        """Whether some gradient is complete, or a bucket was taken."""
        return self._next > 0 or self._passes in self._counts.values()

    def arrive(self, parameter: torch.Tensor) -> None:
        """Record that a backward pass has added to the gradient of a parameter.

        Raises
        ------
        UpdateError
            The gradient is complete already, or was not expected.
        """
        key = id(parameter)
        count = self._counts.get(key, 0) + 1
        if count > self._passes:
            raise UpdateError(
                f"the gradient of {self._name_of(parameter)!r} was computed more than "
                f"backward_passes_per_step={self._passes} times before step() or synchronize(): "
                "call one of them, or pass the number of passes that you accumulate. With a loss "
                "scaler, call synchronize() before scaler.step()"
            )
        if key not in self._bucket_of:
            raise UpdateError(
                f"{self._name_of(parameter)!r} was unfrozen between two backward passes of one "
                "step: change requires_grad after step()"
            )
        self._counts[key] = count
        if count == self._passes:
            self._missing[self._bucket_of[key]] -= 1

    def due(self, *, all_of_them: bool = False) -> Iterator[tuple[list[torch.Tensor], bool]]:
        """Yield the buckets that are due, once each, and whether it is the last of the turn.

        A bucket of which some gradient has not come is due only if all of them are asked for.
        """
        while self._next < len(self.buckets) and (all_of_them or not self._missing[self._next]):
            at = self._next
            yield self.buckets[at], at + 1 == len(self.buckets)
            self._next = at + 1  # not if it could not be submitted: it fails again
