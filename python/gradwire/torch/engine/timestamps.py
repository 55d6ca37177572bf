"""When the buckets of the last steps were encoded, exchanged and decoded."""

from collections.abc import Iterable
from dataclasses import dataclass

from gradwire.report import BucketTimes

__all__ = ["STEPS", "BucketTimestamps", "timeline"]

STEPS = 4
"""How many steps are remembered."""


@dataclass(slots=True, eq=False)
class BucketTimestamps:
    """When each stage of a bucket began and ended, by `time.perf_counter`.

    It refers to no tensor, so remembering it keeps nothing alive.

    Attributes
    ----------
    step : int
        Backward passes that counted before it.
    parameters : int
        Number of parameters in the bucket.
    ready, encoding, sent, arrived, decoding, done : float
        When the gradients were ready, the encode began, the collectives were started, all of them
        had completed, the decode began and ended.
    dense_bytes : int
        Bytes of the gradients.
    wire_bytes : float
        Bytes that this rank sent.
    """

    step: int
    parameters: int
    ready: float
    encoding: float
    sent: float = 0.0
    arrived: float = 0.0
    decoding: float = 0.0
    done: float = 0.0
    dense_bytes: int = 0
    wire_bytes: float = 0.0


def timeline(steps: Iterable[list[BucketTimestamps]]) -> tuple[BucketTimes, ...]:
    """Return the marks of these steps, each step with a clock of its own."""
    found: list[BucketTimes] = []
    for marks in steps:
        zero = min((each.ready for each in marks), default=0.0)
        found += (_times(each, index, zero) for index, each in enumerate(marks))
    return tuple(found)


def _times(each: BucketTimestamps, index: int, zero: float) -> BucketTimes:
    moments = (each.ready, each.encoding, each.sent, each.arrived, each.decoding, each.done)
    ready, encoding, sent, arrived, decoding, done = (1e3 * (at - zero) for at in moments)
    return BucketTimes(
        step=each.step + 1,
        bucket=index,
        parameters=each.parameters,
        dense_bytes=each.dense_bytes,
        wire_bytes=each.wire_bytes,
        ready=ready,
        encode=(encoding, sent),
        exchange=(sent, arrived),
        decode=(decoding, done),
    )
