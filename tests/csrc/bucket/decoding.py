"""Decode frames by the kernels, and say by the same names what the CPU says of them."""

from __future__ import annotations

import ctypes
import enum
import itertools
from collections.abc import Sequence

import numpy as np
import torch

import gradwire
from gradwire.torch.backends.cuda.operators import operators
from tests.csrc.emulated.operators import SANITIZED


class Verdict(enum.IntEnum):
    """As in bucket/piece.h."""

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


def decode(
    frames: Sequence[Sequence[bytes]],
    outs: Sequence[np.ndarray],
    *,
    into: Into = Into.PLACE,
    scale: float = 1.0,
    seeded: bool = True,
    bfloat16: bool = False,
    skew: int = 0,
) -> list[Verdict]:
    """Decode the frames of all ranks of each tensor into ``outs``; return what each frame is.

    Frames begin so many bytes off a multiple of 16; sanitizers see what is read between them.
    """
    every = [data for of_tensor in frames for data in of_tensor]
    rooms = [skew + -(-len(data) // 16) * 16 + 32 for data in every]
    starts = [end - room + skew for end, room in zip(np.cumsum(rooms).tolist(), rooms, strict=True)]
    data = np.zeros(sum(rooms), np.uint8)
    for at, frame in zip(starts, every, strict=True):
        data[at : at + len(frame)] = np.frombuffer(frame, np.uint8)
        poison(data[at + len(frame) : at + len(frame) + 16], "poison")
    flat = torch.from_numpy(np.concatenate(outs))
    stops = [0, *np.cumsum([out.size for out in outs]).tolist()]
    result = operators().decode_bucket(
        *(flat.view(torch.bfloat16) if bfloat16 else flat, torch.from_numpy(data)),
        [end for pair in itertools.pairwise(stops) for end in pair],
        *(starts, list(map(len, every)), len(frames[0]), int(into), scale, seeded, 0),
    )
    poison(data, "unpoison")
    for out, part in zip(outs, flat.split([out.size for out in outs]), strict=True):
        out[:] = part.numpy()
    failed, *verdicts = result.tolist()
    bad = np.flatnonzero(verdicts)
    assert failed == (len(every) - bad[0] if bad.size else 0)
    return [Verdict(verdict) for verdict in verdicts]


def poison(part: np.ndarray, word: str) -> None:
    """Have the address sanitizer, if there is one, refuse reads of these bytes, or allow them."""
    if SANITIZED:
        call = getattr(ctypes.CDLL(None), f"__asan_{word}_memory_region")
        call(ctypes.c_void_p(part.ctypes.data), ctypes.c_size_t(part.size))


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
