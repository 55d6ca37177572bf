"""A bucket that the kernels encode, and the same tensors encoded by the core, step by step."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence

import numpy as np
import torch
from numpy.typing import NDArray

import gradwire
from gradwire.torch.backends import cpu, cuda
from gradwire.torch.backends.cuda import structs
from gradwire.torch.backends.cuda.states import STATUS
from tests.support import same_state

Law = Callable[[np.random.Generator, int], NDArray[np.float32]]
Limits = Sequence[int | None] | None
MARK = 0xA5
"""In all bytes that no kernel may write."""


class Pair:
    """States of the same tensors on either side. All that `encode` gives is compared.

    Parameters
    ----------
    codecs, numels
        Of each tensor.
    offset
        Where the first tensor begins in the bucket.
    """

    def __init__(
        self, codecs: Sequence[gradwire.Codec], numels: Sequence[int], *, offset: int = 0
    ) -> None:
        self.codecs, self.numels = list(codecs), list(numels)
        stops = list(itertools.accumulate(numels, initial=offset))
        self.ends = [end for pair in itertools.pairwise(stops) for end in pair]
        self.offset = offset
        self.there, self.here = (
            [
                each.init_state(codec, n, f"w{i}", 3)
                for i, (codec, n) in enumerate(zip(self.codecs, self.numels, strict=True))
            ]
            for each in (cuda, cpu)
        )

    def start(
        self,
        gradients: Sequence[np.ndarray],
        *,
        limits: Limits = None,
        divisor: float = 1.0,
        positions: Sequence[NDArray[np.uint32]] | None = None,
    ) -> tuple[list[bytes], NDArray[np.int64]]:
        """Encode by the kernels alone; return the frames up to a failure, and the table."""
        flat = np.concatenate([np.zeros(self.offset, gradients[0].dtype), *gradients])
        bits = flat.view(np.uint16) if flat.dtype.name == "bfloat16" else flat
        tensor = torch.from_numpy(bits)
        tensor = tensor.view(torch.bfloat16) if bits is not flat else tensor
        most = [
            codec._codec.max_encoded_len(n, None if positions is None else len(positions[i]))
            for i, (codec, n) in enumerate(zip(self.codecs, self.numels, strict=True))
        ]
        asked = [None] * len(most) if limits is None else limits
        rooms = [m if n is None else n for m, n in zip(most, asked, strict=True)]
        out = torch.full((sum(rooms),), MARK, dtype=torch.uint8)
        started = cuda.encoding.start(
            *(self.codecs, self.there, self.ends, rooms, tensor, divisor, out, positions or ())
        )
        rows = started.table.numpy()
        sizes = started.outcomes(rows)[:, 0].tolist()
        assert (out[sum(sizes) :] == MARK).all() or len(sizes) < len(rows)
        return [part.numpy().tobytes() for part in out[: sum(sizes)].split(sizes)], rows

    def encode(
        self,
        gradients: Sequence[np.ndarray],
        *,
        limits: Limits = None,
        divisor: float = 1.0,
        positions: Sequence[NDArray[np.uint32]] | None = None,
    ) -> list[bytes]:
        """Encode on both sides, compare frames, results and states; the frames.

        Of given positions, the smallest entries are left out where limits require it.
        """
        frames, rows = self.start(gradients, limits=limits, divisor=divisor, positions=positions)
        limits = [None] * len(self.codecs) if limits is None else limits
        for i, (codec, state) in enumerate(zip(self.codecs, self.here, strict=True)):
            x = gradients[i]
            if divisor != 1.0:
                x = x.astype(np.float32) / np.float32(divisor)
            what = f"piece {i} of {self.numels[i]}, {codec!r}"
            assert structs.STATUS[rows[i, STATUS]] == "ok", what
            if positions is None:
                frame = codec.encode(x, state, max_nbytes=limits[i])
                assert rows[i, cuda.states.ZERO] == (not np.any(gradients[i])), what
            else:
                native = codec._codec
                frame = native.encode_at(x, state, positions[i], limits[i], False, may_trim=True)
            assert frames[i] == bytes(frame), what
        self.compare()
        return frames

    def rollback(self) -> None:
        """Undo the last encode on both sides."""
        cuda.rollback(self.there)
        cpu.rollback(self.here)
        self.compare()

    def compare(self) -> None:
        """Compare all that the states hold, bit for bit."""
        for one, other in zip(self.there, self.here, strict=True):
            assert same_state(one.state_dict(), other.state_dict()), other.codec
            assert one.last == other.last, other.codec


def heavy(rng: np.random.Generator, numel: int) -> NDArray[np.float32]:
    """Tails heavier than a normal law's, as gradients have."""
    return (rng.standard_normal(numel) * rng.gamma(0.5, size=numel)).astype(np.float32)


def _ends(rng: np.random.Generator, numel: int) -> NDArray[np.float32]:
    """Numbers below and above the smallest normal one, and some whose squares are not in range."""
    x = heavy(rng, numel) * 10.0 ** rng.choice([-44, -38, -37, -19, 0, 20, 30], numel)
    return x.astype(np.float32)


def _one(rng: np.random.Generator, numel: int) -> NDArray[np.float32]:
    x = np.zeros(numel, np.float32)
    x[rng.integers(numel, size=min(numel, 1))] = -3
    return x


LAWS: dict[str, Law] = {
    "heavy": heavy,
    "all equal": lambda rng, n: np.full(n, 0.25, np.float32),
    "many ties": lambda rng, n: rng.choice(np.array([0, 1, -1, 2, 0.5], np.float32), n),
    "zeros": lambda rng, n: np.zeros(n, np.float32),
    "one non-zero": _one,
    "subnormal": lambda rng, n: (rng.integers(-9, 9, n) * 1e-44).astype(np.float32),
    "ends of the range": _ends,
    "layers": lambda rng, n: (heavy(rng, n) * 10.0 ** rng.integers(-6, 2, n)).astype(np.float32),
    "jumps": lambda rng, n: (heavy(rng, n) * 10.0 ** rng.integers(-3, 3)).astype(np.float32),
}
"""Gradients of one step: what selections and fits find hard."""
