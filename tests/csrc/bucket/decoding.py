"""Decode frames by the kernels, and say by the same names what the CPU says of them."""

from __future__ import annotations

import ctypes
import enum
from collections.abc import Sequence

import numpy as np

import gradwire
from tests.csrc.emulated.kernels import Kernels


class Verdict(enum.IntEnum):
    """As in frame/verdict.h."""

    GOOD = 0
    CORRUPT = 1
    TRUNCATED = 2
    UNSUPPORTED = 3
    TOO_LARGE = 4
    NUMEL = 5
    OUTSIDE = 6
    SEEDED = 7


class Into(enum.IntEnum):
    """As in bucket/decode.h."""

    PLACE = 0
    ADD = 1
    RANKS = 2
    SENDERS = 3


DTYPES = {"float32": 0, "float64": 1, "float16": 2, "bfloat16": 3}


def device_bytes(data: bytes, skew: int = 0) -> np.ndarray:
    """The bytes at an address that is so much off a multiple of 16, and nothing after them."""
    return np.frombuffer(bytes(skew) + data, np.uint8).copy()[skew:]


def decode(
    kernels: Kernels,
    frames: Sequence[Sequence[bytes]],
    outs: Sequence[np.ndarray],
    *,
    into: Into = Into.PLACE,
    scale: float = 1.0,
    seeded: bool = True,
    bfloat16: bool = False,
    skew: int = 0,
) -> list[Verdict]:
    """Decode the frames of all ranks of each tensor into ``outs``; return what each frame is."""
    ranks = len(frames[0])
    flat = [device_bytes(data, skew) for of_tensor in frames for data in of_tensor]
    at = np.array([(data.ctypes.data, data.size) for data in flat], np.uint64).reshape(-1, 2)
    code = [DTYPES["bfloat16" if bfloat16 else out.dtype.name] for out in outs]
    targets = np.array(
        [(out.ctypes.data, out.size, c) for out, c in zip(outs, code, strict=True)], np.uint64
    )
    lens, numels = at[:, 1].copy(), targets[:, 1].copy()
    frame_tiles = np.zeros(len(flat) + 1, np.uint32)
    target_tiles = np.zeros(len(outs) + 1, np.uint32)
    plan = kernels.function("gradwire_test_plan_decode", ctypes.c_uint64)
    room = plan(lens, numels, len(outs), ranks, seeded, frame_tiles, target_tiles)
    workspace = np.full(room // 8 + 1, 0xA5A5A5A5A5A5A5A5, np.uint64)
    verdicts, failed = np.full(len(flat), 99, np.uint32), np.full(1, 99, np.uint32)
    kernels.call(
        "gradwire_test_decode",
        *(at, targets, len(outs), ranks, frame_tiles, target_tiles),
        *(int(into), scale, seeded, verdicts, failed, workspace),
    )
    bad = np.flatnonzero(verdicts)
    assert failed[0] == (len(flat) - bad[0] if bad.size else 0)
    return [Verdict(int(verdict)) for verdict in verdicts]


def by_the_cpu(data: bytes, numel: int) -> tuple[Verdict, np.ndarray]:
    """What the CPU says of a frame for a tensor of this length, and the tensor that it makes."""
    out = np.full(numel, 7, np.float32)
    try:
        gradwire.decode(data, out)
    except gradwire.FrameTooLargeError:
        return Verdict.TOO_LARGE, out
    except gradwire.TruncatedFrameError:
        return Verdict.TRUNCATED, out
    except gradwire.UnsupportedFrameError:
        return Verdict.UNSUPPORTED, out
    except gradwire.CorruptFrameError:
        return Verdict.CORRUPT, out
    except ValueError:
        return Verdict.NUMEL, out
    return Verdict.GOOD, out


def same_bits(a: np.ndarray, b: np.ndarray) -> None:
    np.testing.assert_array_equal(a.view(np.uint8), b.view(np.uint8))
