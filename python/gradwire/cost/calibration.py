"""The cost of codecs on a machine: lines fitted to timed encodes and decodes, and their file."""

import dataclasses
import json
import math
import platform
import statistics
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from gradwire import _files
from gradwire._codec import Codec
from gradwire._native import get_num_threads, simd_level
from gradwire._validate import Checked, Count, NotNegative, Share, require
from gradwire.cost.network import information_bits
from gradwire.frame import decode, decode_add
from gradwire.presets import dense
from gradwire.quantize import BFloat16
from gradwire.schedule.base import with_ratio

Array = NDArray[np.float32]

NUMELS = (1 << 14, 1 << 18, 1 << 21)
"""Sizes of tensors; the largest does not fit into caches."""
SPREAD = 4.0
"""Factor between a codec's ratio and the two other ratios that are measured."""
EVICTED = 1 << 24
"""Entries of float32 that are written between repetitions: more than caches hold."""
LEAST = 5
"""Least number of repetitions of each point, after one that is not counted."""
VERSION = 1
"""Version of the dict that `Calibration.to_json` returns."""
_LARGEST = 1 << 24
"""Bytes of a file."""


@dataclasses.dataclass(frozen=True)
class Line(Checked):
    """Seconds of a tensor: ``frames * fixed + numel * per_numel + entries * per_entry``."""

    fixed: NotNegative  #: Seconds of a frame.
    per_numel: NotNegative  #: Seconds of an entry of the tensor.
    per_entry: NotNegative  #: Seconds of an entry that is sent.
    error: NotNegative = 0.0  #: The largest relative error at the points that it was fitted to.

    def __call__(self, numel: float, entries: float, frames: float = 1) -> float:
        """Return the seconds for a tensor of ``numel`` entries that sends ``entries``."""
        return frames * self.fixed + numel * self.per_numel + entries * self.per_entry


@dataclasses.dataclass(frozen=True)
class CodecCost(Checked):
    """The cost of one codec.

    Attributes
    ----------
    codec : Codec
        The codec. The measurements also hold for its other ratios.
    encode : Line
        Seconds of an encode.
    decode : Line
        Seconds of adding a decoded frame to a tensor.
    header : float
        Bytes of a frame without entries.
    entry_bits : float
        Bits per entry, without the information bound of its position.
    share : float
        Share of the entries that is sent: the ratio, or without one that of the calibration data.
    state_bytes : float
        Bytes of state per entry of a tensor.
    """

    codec: Codec
    encode: Line
    decode: Line
    header: NotNegative
    entry_bits: NotNegative
    share: Share
    state_bytes: NotNegative

    def to_json(self) -> dict[str, Any]:
        lines = {name: dataclasses.asdict(getattr(self, name)) for name in ("encode", "decode")}
        return {**vars(self), **lines, "codec": self.codec.get_config()}

    @classmethod
    def from_json(cls, plain: dict[str, Any]) -> Self:
        lines = {name: Line(**plain[name]) for name in ("encode", "decode")}
        return cls(**{**plain, **lines, "codec": Codec.from_config(plain["codec"])})


@dataclasses.dataclass(frozen=True)
class Calibration(Checked):
    """The cost of codecs on one machine.

    Attributes
    ----------
    codecs : mapping of str to CodecCost
        Costs of the codecs, by name.
    cast_seconds : float
        Seconds per entry of the casts to bfloat16 and back.
    clear_seconds : float
        Seconds per entry of writing zeros.
    threads : int
        Threads of an encode.
    machine : mapping of str to str
        Its processor and SIMD level.
    """

    codecs: Mapping[str, CodecCost]
    cast_seconds: NotNegative
    clear_seconds: NotNegative
    threads: Count
    machine: Mapping[str, str] = dataclasses.field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        """Return plain dicts, strings and numbers, for `from_json`."""
        codecs = {name: cost.to_json() for name, cost in self.codecs.items()}
        return {"version": VERSION, **vars(self), "codecs": codecs, "machine": dict(self.machine)}

    @classmethod
    def from_json(cls, plain: dict[str, Any]) -> Self:
        """Return the calibration that `to_json` describes; a ValueError if it is none."""
        version = plain.get("version") if isinstance(plain, dict) else None
        require(
            version == VERSION,
            "this gradwire reads version {} of what Calibration.save writes, got version {!r}: "
            "calibrate again",
            *(VERSION, version),
        )
        rest = {name: value for name, value in plain.items() if name != "version"}
        try:
            codecs = {name: CodecCost.from_json(cost) for name, cost in rest["codecs"].items()}
            return cls(**{**rest, "codecs": codecs})
        except (KeyError, TypeError, AttributeError, ValueError) as error:
            raise ValueError(f"not a calibration: {error}; calibrate again") from error

    def save(self, path: str | Path) -> None:
        """Write a file of JSON, which is replaced once the new one is complete, or an OSError."""
        text = json.dumps(self.to_json(), indent=1, allow_nan=False)
        _files.write(path, text + "\n")

    @classmethod
    def load(cls, path: str | Path) -> Self:
        """Read a file that `save` wrote; a ValueError if it has no calibration, or an OSError."""
        try:
            return cls.from_json(_files.read_json(path, _LARGEST))
        except ValueError as error:
            raise ValueError(f"{path} has no calibration: {str(error)[:300]}") from error


def line(points: list[tuple[float, float, float]]) -> Line:
    """Fit seconds to points (numel, entries, seconds), by least squares of relative errors.

    No coefficient is negative: of all choices of coefficients, the best feasible one.
    """
    table = np.array(points, np.float64)
    columns = np.column_stack([np.ones(len(table)), table[:, 0], table[:, 1]]) / table[:, 2:]
    best, least = np.zeros(3), math.inf
    for choice in range(1, 8):
        chosen = [at for at in range(3) if choice >> at & 1]
        solution = np.linalg.lstsq(columns[:, chosen], np.ones(len(table)), rcond=None)[0]
        whole = np.zeros(3)
        whole[chosen] = solution
        squares = float(np.square(columns @ whole - 1).sum())
        if (solution >= 0).all() and squares < least:
            best, least = whole, squares
    fixed, per_numel, per_entry = best.tolist()
    return Line(fixed, per_numel, per_entry, float(np.abs(columns @ best - 1).max()))


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
    tensors = {numel: [_gradient(draw, numel) for _ in range(2)] for numel in NUMELS}
    clock = _Clock(np.zeros(EVICTED, np.float32))
    half = _measure(dense(quantize=BFloat16()), tensors, seconds / 4, clock)
    largest = tensors[max(NUMELS)][0].copy()
    cleared = clock.median(lambda turn: largest.fill(0.0), 0.05)
    costs = {name: _measure(codec, tensors, seconds, clock) for name, codec in codecs.items()}
    machine = {"processor": platform.processor() or platform.machine(), "simd": str(simd_level())}
    return Calibration(
        costs,
        half.encode(1, 1, frames=0) + half.decode(1, 1, frames=0),
        cleared / largest.size,
        get_num_threads(),
        machine,
    )


def _gradient(draw: np.random.Generator, numel: int) -> Array:
    made = draw.standard_normal(numel, np.float32)
    made *= draw.standard_exponential(numel, np.float32) * np.float32(1e-3)
    return made


def _at_ratios(codec: Codec) -> list[Codec]:
    ratio = getattr(codec.sparsify, "ratio", None)
    if not isinstance(ratio, float):
        return [codec]
    ratios = sorted({ratio / SPREAD, ratio, min(1.0, ratio * SPREAD)})
    return [with_ratio(codec, ratio) for ratio in ratios]


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
    codec: Codec, samples: Mapping[int, list[Array]], seconds: float, clock: "_Clock"
) -> CodecCost:
    variants, numel = _at_ratios(codec), max(samples)
    each = seconds / (2 * len(samples) * len(variants))
    points = [
        (variant, _Point.of(variant, tensors, each, clock))
        for tensors in samples.values()
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
