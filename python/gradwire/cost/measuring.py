"""Timing codecs on this machine, each for a few seconds."""

import dataclasses
import platform
import statistics
import time
from collections.abc import Callable, Mapping
from typing import Self

import numpy as np
from numpy.typing import NDArray

from gradwire._codec import Codec
from gradwire._native import get_num_threads, simd_level
from gradwire.cost.calibration import Calibration, CodecCost, line
from gradwire.cost.payload import information_bits
from gradwire.frame import decode, decode_add
from gradwire.presets import dense
from gradwire.quantize import BFloat16
from gradwire.schedule.base import with_ratio

NUMELS = (1 << 14, 1 << 18, 1 << 21)
"""Sizes of tensors; the largest does not fit into caches."""
SPREAD = 4.0
"""Factor between a codec's ratio and the two other ratios that are measured."""
EVICTED = 1 << 24
"""Entries of float32 that are written between repetitions: more than caches hold."""
LEAST = 5
"""Least number of repetitions of each point, after one that is not counted."""

Array = NDArray[np.float32]


def calibrate(codecs: Mapping[str, Codec], *, seconds: float = 2.0) -> Calibration:
    """Measure the cost of codecs on this machine, with the current number of threads.

    Each point is the median of steady encodes of heavy-tailed numbers, like gradients, and of
    decodes that add a frame to a tensor. A codec with a ratio is measured at three ratios. Without
    one, the number of selected entries depends on the data: see `CodecCost.share`. Before each
    repetition, the processor's caches are evicted, as by other tensors in training. Other programs
    make codecs seem slower than they are: leave the machine idle.

    Parameters
    ----------
    codecs : mapping of str to Codec
        By name.
    seconds : float
        Time for each codec, approximately.

    Returns
    -------
    Calibration
        For `compressed`, and to be saved.
    """
    draw = np.random.default_rng(0)
    given = {numel: [_gradient(draw, numel) for _ in range(2)] for numel in NUMELS}
    clock = _Clock(np.zeros(EVICTED, np.float32))
    half = _measure(dense(quantize=BFloat16()), given, seconds / 4, clock)
    largest = given[max(NUMELS)][0].copy()
    cleared = clock.median(lambda turn: largest.fill(0.0), 0.05)
    costs = {name: _measure(codec, given, seconds, clock) for name, codec in codecs.items()}
    machine = {"processor": platform.processor() or platform.machine(), "simd": str(simd_level())}
    return Calibration(
        costs,
        half.encode(1, 1, frames=0) + half.decode(1, 1, frames=0),
        cleared / largest.size,
        get_num_threads(),
        machine,
    )


def _gradient(draw: np.random.Generator, numel: int) -> Array:
    """Return heavy-tailed random numbers."""
    made = draw.standard_normal(numel, np.float32)
    made *= draw.standard_exponential(numel, np.float32) * np.float32(1e-3)
    return made


def _at_ratios(codec: Codec) -> list[Codec]:
    ratio = getattr(codec.sparsify, "ratio", None)
    if not isinstance(ratio, float):
        return [codec]
    ratios = sorted({ratio / SPREAD, ratio, min(1.0, ratio * SPREAD)})
    return [with_ratio(codec, each) for each in ratios]


@dataclasses.dataclass(frozen=True)
class _Point:
    """The times of one codec for one tensor."""

    numel: int
    count: int
    nbytes: int
    encode: float
    decode: float

    @classmethod
    def of(cls, codec: Codec, tensors: list[Array], seconds: float, clock: "_Clock") -> Self:
        numel = tensors[0].size
        made = codec.for_shape(_shape(numel))
        state, out = made.init_state(numel), np.zeros(numel, np.float32)
        room = bytearray(made.max_encoded_len(numel))
        encode = clock.median(lambda at: made.encode_into(tensors[at % 2], state, room), seconds)
        frame = made.encode(tensors[0], state)
        add = clock.median(lambda turn: decode_add(frame, out), seconds)
        count = int(np.count_nonzero(decode(frame))) if codec.sparsify.selects else numel
        return cls(numel, count, len(frame), encode, add)


def _measure(
    codec: Codec, given: Mapping[int, list[Array]], seconds: float, clock: "_Clock"
) -> CodecCost:
    variants, numel = _at_ratios(codec), max(given)
    each = seconds / (2 * len(given) * len(variants))
    points = [
        (variant, _Point.of(variant, tensors, each, clock))
        for tensors in given.values()
        for variant in variants
    ]
    large = {variant: point for variant, point in points if point.numel == numel}
    least = codec.for_shape((1, 1))
    header = float(len(least.encode(np.zeros(1, np.float32), least.init_state(1))))
    coded = codec.sparsify.selects and not codec.sparsify.shared
    used = [
        8.0 * (point.nbytes - header) / point.count
        - (information_bits(numel, point.count) if coded else 0.0)
        for point in large.values()
        if point.count
    ]
    bits = max(0.0, statistics.mean(used)) if used else 32.0
    return CodecCost(
        codec,
        line([(point.numel, point.count, point.encode) for _, point in points]),
        line([(point.numel, point.count, point.decode) for _, point in points]),
        header,
        bits,
        max(large[codec].count, 1) / numel,
        codec.for_shape(_shape(numel)).init_state(numel).nbytes / numel,
    )


def _shape(numel: int) -> tuple[int, int]:
    """Return the shape of a nearly square matrix with ``numel`` entries."""
    rows = 1 << (numel.bit_length() // 2)
    while numel % rows:
        rows >>= 1
    return rows, numel // rows


@dataclasses.dataclass(frozen=True)
class _Clock:
    """Times calls, each after a write to other memory that evicts the caches."""

    other: Array

    def median(self, act: Callable[[int], object], seconds: float) -> float:
        """Return the median time of the calls that fit into ``seconds``."""
        act(0)
        times: list[float] = []
        end = time.perf_counter() + seconds
        while len(times) < LEAST or time.perf_counter() < end:
            np.add(self.other, 1.0, out=self.other)
            begin = time.perf_counter()
            act(len(times) + 1)
            times.append(time.perf_counter() - begin)
        return statistics.median(times)
