"""Encode a bucket with the kernels, and the same tensors with the core."""

from __future__ import annotations

import ctypes as c
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

import gradwire
from gradwire import sparsify
from gradwire.torch.backends.cuda import structs
from gradwire.torch.backends.cuda.states import COLUMNS
from tests.csrc.emulated.kernels import Kernels

DTYPES = ("float32", "float64", "float16", "bfloat16")
UNLIMITED = 2**40


@dataclass
class Outcome:
    """What came of one piece: its frame, or why there is none."""

    status: str
    frame: bytes
    nbytes: int
    last: dict[str, Any]
    bad: tuple[int, int]
    zero: bool


class DeviceBucket:
    """States and buffers of a bucket, and the launches that encode it.

    Parameters
    ----------
    kernels
        The compiled kernels.
    codecs, numels
        Of each piece; names are ``w0``, ``w1`` and so on.
    blocks
        Blocks that are resident at once.
    stream
        The stream of all states.
    """

    def __init__(
        self,
        kernels: Kernels,
        codecs: list[gradwire.Codec],
        numels: list[int],
        *,
        blocks: int,
        stream: int = 0,
    ) -> None:
        self.kernels, self.codecs, self.numels, self.blocks = kernels, list(codecs), numels, blocks
        self.states = (structs.State * len(codecs))()
        self.buffers = [
            {
                "residual": _buffers(codec.memory.keeps, n, _stored(codec)),
                "moment": _buffers(_has_moment(codec), n, np.float32),
            }
            for codec, n in zip(codecs, numels, strict=True)
        ]
        for i, (codec, state) in enumerate(zip(codecs, self.states, strict=True)):
            state.tensor, state.stream, state.rate = structs.tensor_id(f"w{i}"), stream, 1.0
            state.tracked.sparsify = self._sparsify(codec, numels[i])
            state.tracked.tracker.controller.stages = state.tracked.sparsify.start_stages
            if codec.sparsify.kind == "sid":
                state.tracked.tracker.controller.last = 1.0

    def _sparsify(self, codec: gradwire.Codec, numel: int) -> Any:
        out = structs.sparsify_of(codec.sparsify)
        if isinstance(codec.sparsify, sparsify.SID):
            target = min(max(int(numel * codec.sparsify.ratio), 1), numel)
            fixed = codec.sparsify.stages if isinstance(codec.sparsify.stages, int) else 0
            room = (structs.Sparsify * 1)(out)
            self.kernels.call("gradwire_test_stages", room, target / max(numel, 1), fixed)
            return room[0]
        return out

    def encode(
        self,
        gradients: Sequence[np.ndarray],
        *,
        limits: Sequence[int | None] | None = None,
        divisor: float = 1.0,
        supports: Sequence[np.ndarray] | None = None,
        may_trim: bool = False,
    ) -> list[Outcome]:
        """Encode a gradient of each piece, with limits in bytes where they are not None.

        With supports, the entries at these positions, which must outlive the call.
        """
        count = len(self.codecs)
        pieces = (structs.Piece * count)()
        frames = []
        for i, (piece, codec, numel) in enumerate(
            zip(pieces, self.codecs, self.numels, strict=True)
        ):
            limit = None if limits is None else limits[i]
            if limit is None:
                limit = codec.max_encoded_len(numel) if supports is None else 200 + 20 * numel
            frames.append(_room(limit))
            dtype = gradients[i].dtype.name
            piece.gradient, piece.numel = gradients[i].ctypes.data, numel
            piece.frame, piece.limit = frames[i].ctypes.data, limit
            piece.dtype, piece.indices = (
                DTYPES.index(dtype),
                structs.INDICES.index(str(codec.indices)),
            )
            piece.memory = structs.memory_of(codec.memory)
            piece.sparsify = self._sparsify(codec, numel)
            piece.quantize = structs.quantize_of(codec.quantize)
            piece.pattern = structs.pattern_of(codec)
            piece.state = c.addressof(self.states[i])
            if supports is not None:
                piece.given, piece.may_trim = 1, may_trim
                piece.support, piece.support_count = supports[i].ctypes.data, len(supports[i])
                if piece.pattern.kind != 1:
                    piece.pattern = structs.Pattern()
            for name in ("residual", "moment"):
                for side, buffer in enumerate(self.buffers[i][name]):
                    getattr(piece, name)[side] = buffer.ctypes.data
        sizes = np.zeros(5, np.uint64)
        self.kernels.call("gradwire_test_encode_layout", pieces, count, self.blocks, sizes)
        rooms = [_room(int(n)) for n in sizes]
        select_table, select_scratch, write_table, write_scratch, kept = rooms
        kept[:] = 0
        self.kernels.call(
            "gradwire_test_encode_tables",
            *(pieces, count, self.blocks, select_table, kept, select_scratch, write_table),
        )
        selections = (structs.Selection * count)()
        self.kernels.call(
            "gradwire_test_encode",
            *(pieces, count, self.blocks, selections, select_table, write_table, write_scratch),
            np.float32(divisor),
            np.zeros((count, COLUMNS), np.int64),
        )
        self.pieces = pieces
        return [
            Outcome(
                status=structs.STATUS[s.status],
                frame=bytes(frame[: s.nbytes]) if s.status == 0 else b"",
                nbytes=s.nbytes,
                last={
                    "count": s.count,
                    "target": s.target if s.has_target else None,
                    "threshold": s.threshold,
                    "trimmed": s.trimmed,
                },
                bad=(s.bad_count, s.bad_first),
                zero=bool(s.zero),
            )
            for s, frame in zip(selections, frames, strict=True)
        ]

    def rollback(self) -> None:
        """Undo the last encode of all pieces."""
        self.kernels.call("gradwire_test_rollback", self.pieces, len(self.codecs))

    def state_dict(self, i: int) -> dict[str, Any]:
        """Return what the state dict of the core's state has, but for its version and codec."""
        state, codec = self.states[i], self.codecs[i]
        arrays = {
            name: pair[state.current] if pair else None for name, pair in self.buffers[i].items()
        }
        tracker = state.tracked.tracker
        scalars: dict[str, float] = {}
        moment = codec.memory.kind
        if moment == "adam_correction":
            scalars |= {"learning_rate": state.rate, "second_moment_steps": state.moment_steps}
        for name in ("bound", "threshold", "location"):
            if getattr(tracker, name).there:
                scalars[name] = getattr(tracker, name).value
        if codec.sparsify.kind == "sid":
            for name in ("stages", "last", "sum", "seen", "aim", "misses", "rest", "rests"):
                scalars[f"controller.{name}"] = getattr(tracker.controller, name)
        return {
            "step": state.step,
            "residual": arrays["residual"],
            "momentum": arrays["moment"] if moment == "momentum_correction" else None,
            "second_moment": arrays["moment"] if moment == "adam_correction" else None,
            "scalars": scalars,
        }


def _has_moment(codec: gradwire.Codec) -> bool:
    return codec.memory.kind in ("momentum_correction", "adam_correction")


def _stored(codec: gradwire.Codec) -> type:
    """Return what a residual is kept as; bfloat16 as its bits."""
    return np.uint16 if getattr(codec.memory, "low_memory", False) else np.float32


def _buffers(wanted: bool, numel: int, dtype: type) -> list[np.ndarray]:
    return [np.zeros(numel, dtype) for _ in range(2 if wanted else 0)]


def _room(nbytes: int) -> np.ndarray:
    room = np.full(nbytes, 0xA5, np.uint8)  # no kernel can rely on what it is handed
    assert (
        room.ctypes.data % 16 == 0
    )  # the allocator's own alignment, so that a sanitizer sees the end
    return room
