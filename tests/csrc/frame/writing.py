"""Frames of given positions and values, written by the kernels: numpy arrays in, bytes out."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass
from typing import get_args

import numpy as np
from numpy.typing import NDArray

from gradwire import quantize
from gradwire._codec import IndexCoding
from gradwire.quantize import Quantizer
from tests.csrc.emulated.kernels import Kernels

CODINGS: tuple[IndexCoding, ...] = get_args(IndexCoding)
DTYPES = ("float32", "float64", "float16", "bfloat16")
SPARSIFIERS = {"all": 0, "threshold": 1, "topk": 2, "chunk_topk": 5, "random_k": 8}
_GOLDEN = 0x9E3779B97F4A7C15
_WORD = (1 << 64) - 1


def _scramble(word: int) -> int:
    word = (word ^ word >> 30) * 0xBF58476D1CE4E5B9 & _WORD
    word = (word ^ word >> 27) * 0x94D049BB133111EB & _WORD
    return word ^ word >> 31


def key(seed: int, stream: int) -> int:
    """Key of the first step of a tensor without a name."""
    out = _scramble(seed)
    for number in (0, 0, stream & _WORD):
        out = _scramble(out ^ _scramble(number + _GOLDEN & _WORD))
    return out


def _finalize(x: NDArray[np.uint32]) -> NDArray[np.uint32]:
    x = (x ^ x >> np.uint32(16)) * np.uint32(0x21F0AAAD)
    x = (x ^ x >> np.uint32(15)) * np.uint32(0x735A2D97)
    return x ^ x >> np.uint32(15)


def draws(of: int, count: int) -> NDArray[np.uint32]:
    """The first random numbers of a key."""
    at = np.arange(count, dtype=np.uint32)
    low, high = np.uint32(of & 0xFFFFFFFF), np.uint32(of >> 32)
    return _finalize(_finalize(at + low) + high)


class Given(ctypes.Structure):
    """What write.cu reads of a tensor."""

    _fields_ = (
        *((name, ctypes.c_uint64) for name in ("numel", "count", "most", "dtype", "sparsifier")),
        *((name, ctypes.c_uint64) for name in ("indices", "pattern", "size", "k")),
        *((name, ctypes.c_uint64) for name in ("quantizer", "bits", "magnitude", "norm")),
        *((name, ctypes.c_uint64) for name in ("stochastic", "block")),
        *((name, ctypes.c_uint64) for name in ("rounding_key", "selection_key", "limit")),
        *((name, ctypes.c_uint64) for name in ("entries", "frame")),
        ("clip", ctypes.c_float),
        ("told", ctypes.c_float),
        ("divisor", ctypes.c_float),
    )


@dataclass
class Entries:
    """What there is to write of one tensor."""

    numel: int
    values: NDArray[np.float32]
    quantizer: Quantizer
    positions: NDArray[np.uint32] | None = None
    """Those of the values; none for all."""
    indices: IndexCoding = "auto"
    sparsifier: str = "topk"
    chunks: tuple[int, int] | None = None
    drawn: str | None = None
    told: float = float("nan")
    room: int = 0
    """Entries that there could be beside these."""
    limit: int | None = None
    seed: int = 0
    dtype: str = "float32"
    divisor: float = 1.0

    def given(self) -> Given:
        """How the kernels are told, but for offsets."""
        quantizer, out = self.quantizer, Given()
        out.numel, out.count = self.numel, self.values.size
        out.most = min(self.values.size + self.room, self.numel)
        out.sparsifier = SPARSIFIERS["all" if self.positions is None else self.sparsifier]
        out.indices = CODINGS.index(self.indices)
        out.dtype, out.divisor = DTYPES.index(self.dtype), self.divisor
        out.clip, out.told, out.rounding_key = 0, self.told, key(getattr(quantizer, "seed", 0), ~0)
        if self.chunks is not None:
            out.pattern, (out.size, out.k) = 1, self.chunks
        if self.drawn is not None:
            out.pattern, out.selection_key = 2 + (self.drawn == "run"), key(self.seed, 0)
        match quantizer:
            case quantize.Float32() | quantize.BFloat16():
                out.quantizer = isinstance(quantizer, quantize.BFloat16)
            case quantize.Float16():
                out.quantizer = 2 + quantizer.scaled
            case quantize.Float8():
                out.quantizer = 4 + (quantizer.format == "e4m3")
                out.block = quantizer.block or 0
                out.stochastic = quantizer.rounding == "stochastic"
            case quantize.Uniform():
                out.quantizer, out.bits, out.block = 6, quantizer.bits, quantizer.block
                out.norm = quantizer.norm == "max"
            case quantize.SignScale():
                out.quantizer = 7
                out.magnitude = {"mean": 0, "rms": 1}.get(quantizer.scale, 2)
            case quantize.TwoMeans():
                out.quantizer, out.block = 8, quantizer.column or 0
            case quantize.Ternary():
                out.quantizer, out.clip = 9, quantizer.clip or 0
            case quantize.Codebook():
                out.quantizer, out.bits = 10, quantizer.bits
            case quantize.Exponent():
                out.quantizer = 11
        return out


@dataclass
class Written:
    """The frame of one tensor; none where it is longer than its limit."""

    frame: bytes | None
    decoded: NDArray[np.float32]
    peak: float
    """Largest magnitude of a dense tensor."""


def write(kernels: Kernels, tensors: Sequence[Entries]) -> list[Written]:
    """Write the frames of a bucket, each in a place with a mark behind it that stays."""
    given = (Given * max(len(tensors), 1))()
    at = entries = 0
    for i, tensor in enumerate(tensors):
        given[i] = tensor.given()
        limit = (
            200 + 9 * tensor.values.size + 8 * tensor.numel
            if tensor.limit is None
            else tensor.limit
        )
        given[i].limit, given[i].frame, given[i].entries = limit, at, entries
        at += -(-limit // 16) * 16 + 16
        entries += tensor.values.size
    positions = [
        np.zeros(tensor.values.size, np.uint32) if tensor.positions is None else tensor.positions
        for tensor in tensors
    ]
    values = [tensor.values for tensor in tensors]
    out = np.full(at + 16, 0xA5, np.uint8)
    decoded = np.zeros(sum(tensor.numel for tensor in tensors) + 1, np.float32)
    nbytes = np.zeros(len(tensors) + 1, np.uint64)
    scratch = np.full(4096 + 4 * at + 1024 * len(tensors), 0xA5, np.uint8)
    at_all = np.concatenate([*positions, np.zeros(1, np.uint32)])
    all_values = np.concatenate([*values, np.zeros(1, np.float32)])
    peaks = np.zeros(len(tensors) + 1, np.float32)
    arguments = (at_all, all_values, out, decoded, nbytes, peaks, scratch, scratch.size)
    kernels.call("gradwire_test_write_frames", given, len(tensors), *arguments)
    written, element = [], 0
    for i, tensor in enumerate(tensors):
        start, size = given[i].frame, int(nbytes[i])
        end = given[i + 1].frame if i + 1 < len(tensors) else out.size
        assert (out[start + size : end] == 0xA5).all(), "nothing is written behind a frame"
        frame = out[start : start + size].tobytes() if size else None
        sent = decoded[element : element + tensor.numel]
        written.append(Written(frame, sent, float(peaks[i])))
        element += tensor.numel
    return written
