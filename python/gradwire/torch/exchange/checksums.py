"""Checksums of averages, by which ranks detect that their replicas differ."""

from collections.abc import Sequence

import torch

from gradwire.torch.engine.bucket_contents import BucketContents
from gradwire.torch.engine.step import InFlightBucket
from gradwire.torch.errors import ExchangeError
from gradwire.torch.exchange.wire import ALL_BITS, Checksum, Verdict


class AverageChecksums:
    """The checksum of the last average of each bucket, sent with the next exchange of that bucket.

    By then all buckets of the step have been averaged, on every rank. All exchanges that decode
    frames write the same bits on every rank, whatever its hardware. So a difference means that a
    link, a memory or a decoder has changed a value, and that the replicas have drifted apart.
    """

    def __init__(self) -> None:
        self._last: dict[int, tuple[int, float, int | torch.Tensor]] = {}

    def note(self, flight: InFlightBucket) -> None:
        """Record the checksum of the average that a bucket holds."""
        task = flight.task
        total = task.bucket.checksum()
        self._last[task.contents.digest] = flight.sequence + 1, task.scale, total

    def last(self, contents: BucketContents) -> Checksum:
        """Return the checksum of a bucket's last average, or one that matches any other."""
        number, scale, total = self._last.get(contents.digest, Checksum())
        return Checksum(number, scale, int(total) & ALL_BITS)

    def unread(self, contents: BucketContents) -> tuple[Checksum, torch.Tensor | None]:
        """Return the same without waiting: a total that is on a device is returned separately."""
        number, scale, total = self._last.get(contents.digest, Checksum())
        if isinstance(total, torch.Tensor):
            return Checksum(number, scale), total
        return self.last(contents), None

    def compare(self, contents: BucketContents, verdicts: Sequence[Verdict]) -> None:
        """Raise an ExchangeError, the same on all ranks, if the averages of two ranks differ."""
        first: dict[tuple[int, float], tuple[int, int]] = {}
        for rank, verdict in enumerate(verdicts):
            number, scale, total = verdict.checksum
            other, expected = first.setdefault((number, scale), (rank, total))
            if number and total != expected:
                raise ExchangeError(
                    f"ranks {other} and {rank} got different averages from the same frames in the "
                    f"previous step, for the bucket with {contents.names[0]!r}: a link, memory or "
                    "a device has changed bytes. Their parameters have differed since: restart "
                    "from a checkpoint",
                    rank,
                )
