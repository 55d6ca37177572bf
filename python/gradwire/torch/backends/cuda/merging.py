"""Kernels of the reduce-scatter: frames are cut for owners, which sum those of all ranks.

As ``rust/core/src/frame/split.rs`` and ``bucket/merge.rs``, byte for byte: frames are summed in the
order of ranks; the owner's residual is added; the largest sums of each range are selected, three
for two that a rank sent on average; the rest, with the rounding errors, becomes the residual. The
host waits for a few words at a time: the headers of the parts, where residuals lie, the sizes of
the frames, and the outcome of the residuals.
"""

import ctypes
import functools
import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from types import SimpleNamespace
from typing import cast

import numpy as np
import torch
from numpy.typing import NDArray

from gradwire import _native
from gradwire._codec import Codec
from gradwire.errors import NonFiniteError
from gradwire.memory import NoMemory
from gradwire.quantize import Quantizer
from gradwire.sparsify import All, Sparsifier, TopK
from gradwire.torch.backends.cuda import encoding, structs
from gradwire.torch.backends.cuda.operators import completed, operators
from gradwire.torch.backends.cuda.states import NBYTES, ROOM, STATUS, DeviceState, undoable
from gradwire.torch.backends.staging import staging

_START, _NBYTES, _NUMEL, _COUNT = range(4)  # columns of csrc/bucket/gather.h
_PARTS = 2  # of a range, at most: see rust/core/src/frame/split.rs
_TARGETED = ("topk", "sid", "chunk_topk")  # what may ask for all entries
_SUMS = (6, 5)  # sums that an owner sends, for so many entries of a rank
_MERGING = 1 << 62  # in the stream of the random numbers of a merge: no rank has one so high


@dataclass(frozen=True, slots=True, eq=False)
class Ranges:
    """The ranges of one owner, each in a different parameter; `ends` alternate start and stop."""

    codecs: Sequence[Codec]
    states: Sequence[DeviceState]
    ends: Sequence[int]
    unused: Sequence[bool]


@dataclass(slots=True, eq=False)
class _Range:
    """A range that is merged, and its sums."""

    number: int  # among all ranges of the owner
    codec: Codec
    state: DeviceState
    start: int  # in its parameter
    sums: torch.Tensor
    residual: torch.Tensor | None = None  # which has gone from the state into the sums

    def join(self) -> None:
        """Have the residual take part, if the largest sums are selected."""
        if self.codec.sparsify.selects and self.codec.memory.keeps:
            self.residual = self.state.join(self.start, self.sums)

    def undo(self) -> NonFiniteError | None:
        """Put the residual back; return the error of sums that are not finite, if it was there."""
        if self.residual is None:
            return None
        self.state._lower(self.start, self.residual, self.state.step)
        bad = torch.nonzero(~torch.isfinite(self.sums))
        return NonFiniteError(len(bad), int(bad[0]), self.state.name) if len(bad) else None

    def most(self, sent: int, ranks: int) -> int:
        """Return how many sums may be sent; -1 for all of them, including zeros."""
        if not self.codec.sparsify.selects:
            return -1
        target, numel = (self.state.last or {}).get("target"), self.sums.numel()
        if self.codec.sparsify.kind in _TARGETED and target == self.state.numel:
            return numel
        return min(-(-_SUMS[0] * sent // (_SUMS[1] * ranks)), numel)


def split(
    codecs: Sequence[Codec],
    frames: torch.Tensor,
    sizes: Sequence[int],
    counts: Sequence[int],
    bounds: Sequence[Sequence[int]],
    owners: Sequence[Sequence[int]],
    ranks: int,
) -> list[torch.Tensor] | None:
    """Cut frames on the device, on the current stream, as `Bucket.split`; wait for the sizes.

    None if kernels cannot read a frame, as with sections that only the host codes.
    """
    cuts: list[list[tuple[int, int, int]]] = [[] for _ in range(ranks)]  # of each owner
    for frame, (ends, whose) in enumerate(zip(bounds, owners, strict=True)):
        for owner, start, stop in zip(whose, ends[:-1], ends[1:], strict=True):
            cuts[owner].append((frame, start, stop))
    every = [cut for frame_cuts in cuts for cut in frame_cuts]
    parts, table, verdicts = operators().split_bucket(
        completed(codecs, [ends[-1] for ends in bounds]),
        *(frames, list(sizes), list(counts)),
        *([frame for frame, _, _ in every], [end for _, *pair in every for end in pair]),
        any(codec.sparsify.kind == "random_k" for codec in codecs),
    )
    rows, failed = staging(frames.device).read_all([table, verdicts[:1]])
    if int(failed):
        return None
    lengths = rows.numpy()[:, NBYTES].reshape(-1, 2).sum(1).tolist()  # of each range
    stops = [0, *itertools.accumulate(lengths)]
    firsts = [0, *itertools.accumulate(map(len, cuts))]
    return [parts[stops[first] : stops[beyond]] for first, beyond in itertools.pairwise(firsts)]


def heads(data: torch.Tensor, bounds: Sequence[int], most: int) -> NDArray[np.int64]:
    """Return the positions of concatenated frames in messages, from their headers. Waits.

    For each message and each of at most ``most`` frames: its start, bytes (0 if there is none),
    elements and entries. Shape (messages, most, 4).
    """
    table = operators().frame_heads(data, list(bounds), most)
    rows: NDArray[np.int64] = staging(data.device).read(table).numpy()
    return rows


def merge(
    data: torch.Tensor, bounds: Sequence[int], ranges: Ranges
) -> tuple[torch.Tensor, Exception | None, int]:
    """Merge on the current stream, as `Bucket.merge`, from and to bytes on the device.

    On an error, the core repeats it on copies for the message; residuals may have changed.
    """
    device, nothing = data.device, torch.empty(0, dtype=torch.uint8, device=data.device)
    numels = np.diff(np.array(ranges.ends, np.int64).reshape(-1, 2))[:, 0].tolist()
    rows_of_ranks = heads(data, bounds, _PARTS * len(numels))
    messages = zip(rows_of_ranks, bounds[::2], bounds[1::2], strict=True)
    parts = [_parts(rows, start, stop, numels) for rows, start, stop in messages]
    whole = [rows for rows in parts if rows is not None]
    if len(whole) < len(parts):
        return nothing, *_host_error(data, bounds, ranges)
    used = np.flatnonzero(np.logical_not(ranges.unused)).tolist()
    if not used:
        return nothing, None, 0
    sums, verdicts = _add_up(data, [[rows[i] for i in used] for rows in whole])
    merged = [
        _Range(i, ranges.codecs[i], ranges.states[i], ranges.ends[2 * i], part)
        for i, part in zip(used, torch.split(sums, [numels[i] for i in used]), strict=True)
    ]
    for run in merged:
        run.join()
    sent = [sum(int(rows[run.number][:, _COUNT].sum()) for rows in whole) for run in merged]
    most = [run.most(count, len(whole)) for run, count in zip(merged, sent, strict=True)]
    out, table = _encode(sums, merged, most)
    rows, *failed = staging(device).read_all([table, *(verdict[:1] for verdict in verdicts)])
    if any(map(int, failed)) or rows[:, STATUS].any():
        errors = [(run.undo(), run.number) for run in merged]
        overflow = next(((error, at) for error, at in errors if error is not None), None)
        return nothing, *_host_error(data, bounds, ranges, overflow)
    sizes = rows[:, NBYTES].tolist()
    bad = _absorb(sums, merged, out, sizes)
    if bad is not None:
        return nothing, *bad
    return out[: sum(sizes)], None, len(ranges.codecs)


def _parts(
    rows: NDArray[np.int64], start: int, stop: int, numels: Sequence[int]
) -> list[NDArray[np.int64]] | None:
    """Return the rows of each range; None if the frames of a message do not cover the ranges."""
    parts, first = [], 0
    for numel in numels:
        end = first
        while numel > 0 and end < min(first + _PARTS, len(rows)) and rows[end, _NBYTES]:
            length = int(rows[end, _NUMEL])
            if not 0 < length <= numel:
                return None
            numel -= length
            end += 1
        if numel != 0:
            return None
        parts.append(rows[first:end])
        first = end
    at = int(rows[first - 1, [_START, _NBYTES]].sum()) if first else start
    return parts if at == stop else None


def _add_up(
    data: torch.Tensor, parts: Sequence[Sequence[NDArray[np.int64]]]
) -> tuple[torch.Tensor, list[torch.Tensor]]:
    """Return the sums of all ranks' frames, and whether each frame was valid."""
    every = [np.concatenate(rank) for rank in parts]
    numel = int(every[0][:, _NUMEL].sum())
    sums = torch.zeros(numel, dtype=torch.float32, device=data.device)
    alike = all(np.array_equal(rows[:, _NUMEL], every[0][:, _NUMEL]) for rows in every)
    verdicts = []
    # Frames of parts that all ranks cut at one place are added up by one call.
    for group in [every] if alike else [[rows] for rows in every]:
        places = np.stack(group, 1)
        into, scale = (encoding.RANKS, len(group)) if alike else (encoding.ADD, 1)
        verdicts.append(
            operators().decode_bucket(
                *(sums, data, encoding.ends_of(places[:, 0, _NUMEL].tolist())),
                *(places[..., column].reshape(-1).tolist() for column in (_START, _NBYTES)),
                *(len(group), into, float(scale), False, 0),
            )
        )
    return sums, verdicts


def _encode(
    sums: torch.Tensor, merged: Sequence[_Range], most: Sequence[int]
) -> tuple[torch.Tensor, torch.Tensor]:
    """Encode sums, at most ``most`` of each range; return the frames and their table."""
    codecs = [run.codec for run in merged]
    again = [_sum_codec(codec.quantize, codec.indices, codec.sparsify.selects) for codec in codecs]
    named = [codec.sparsify.kind if codec.sparsify.selects else None for codec in codecs]
    ends = encoding.ends_of([run.sums.numel() for run in merged])
    plan = merged[0].state.plans.of(again, ends, sums, named=named)
    limits = [
        codec._codec.max_encoded_len(numel, None if few < 0 else few)
        for codec, numel, few in zip(codecs, plan.numels, most, strict=True)
    ]
    out = torch.empty(sum(limits), dtype=torch.uint8, device=sums.device)
    states = _merge_states([run.state for run in merged], sums.device)
    return out, plan.encode(sums, limits, states, 1.0, out, most=most)


@functools.lru_cache(256)
def _sum_codec(quantize: Quantizer, indices: object, selects: bool) -> Codec:
    """Return the codec that encodes sums; the same object for the same parts.

    It is no `Codec`, so that no other use shares its plans.
    """
    sparsify: Sparsifier = TopK(ratio=1.0) if selects else All()
    parts = {"sparsify": sparsify, "quantize": quantize, "memory": NoMemory()}
    return cast("Codec", SimpleNamespace(**parts, indices=indices))


def _merge_states(states: Sequence[DeviceState], device: torch.device) -> list[torch.Tensor]:
    """Return states without a memory, seeded for a merge in this step."""
    rows = torch.zeros((len(states), ROOM), dtype=torch.uint8, device="cpu")
    for row, state in zip(rows, states, strict=True):
        struct = structs.State(tensor=structs.tensor_id(state.name), step=state.step, rate=1.0)
        struct.stream = state.stream ^ _MERGING
        row[: ctypes.sizeof(struct)] = torch.frombuffer(bytearray(struct), dtype=torch.uint8)
    return list(staging(device).upload(rows))


def _absorb(
    sums: torch.Tensor, merged: Sequence[_Range], frames: torch.Tensor, sizes: Sequence[int]
) -> tuple[NonFiniteError, int] | None:
    """Add the unsent rest of sums to residuals; return the first error, and its range."""
    starts = list(itertools.accumulate(sizes[:-1], initial=0))
    ends = encoding.ends_of([run.sums.numel() for run in merged])
    keeps = [i for i, run in enumerate(merged) if run.codec.memory.keeps]
    if not keeps:
        return None
    keepers = [merged[i] for i in keeps]
    with undoable([run.state for run in keepers]) as tensors:
        outcomes = operators().absorb_bucket(
            completed([run.codec for run in keepers], [run.state.numel for run in keepers]),
            *(tensors, [run.start for run in keepers], sums),
            *([end for i in keeps for end in ends[2 * i : 2 * i + 2]], frames),
            *([starts[i] for i in keeps], [sizes[i] for i in keeps]),
        )
        results = staging(sums.device).read(outcomes).numpy().view(np.int64).reshape(-1, 2)
    for run, (count, first) in zip(keepers, results.tolist(), strict=True):
        if count:
            return NonFiniteError(count, first, run.state.name), run.number
    return None


def _host_error(
    data: torch.Tensor,
    bounds: Sequence[int],
    ranges: Ranges,
    overflow: tuple[NonFiniteError, int] | None = None,
) -> tuple[Exception | None, int]:
    """Repeat the merge in the core, to get the error and its range; or else ``overflow``."""
    array, twins = staging(data.device).read(data).numpy(), []
    for codec, state in zip(ranges.codecs, ranges.states, strict=True):
        twin = codec.init_state(state.numel, name=state.name, stream=state.stream)
        codec.encode(np.zeros(state.numel, np.float32), twin)
        twins.append(twin)
    _, merged, error = _native.merge_bucket(
        [array[start:stop] for start, stop in zip(bounds[::2], bounds[1::2], strict=True)],
        [0] * (len(bounds) // 2),
        [codec._codec for codec in ranges.codecs],
        twins,
        ranges.ends,
        ranges.unused,
    )
    if error is None and overflow is not None:
        return overflow
    refused = RuntimeError("kernels refuse parts of frames that the core merges")
    return error or refused, merged.size // 3
