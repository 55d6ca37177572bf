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

_START, _NBYTES, _NUMEL, _COUNT = range(4)  # columns of csrc/bucket/heads.h
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

    @property
    def numels(self) -> list[int]:
        """Entries of each range."""
        return [end - start for start, end in zip(self.ends[::2], self.ends[1::2], strict=True)]


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
    every = [cut for own in cuts for cut in own]
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
    found: NDArray[np.int64] = staging(data.device).read(table).numpy()
    return found


def merge(
    data: torch.Tensor, bounds: Sequence[int], ranges: Ranges
) -> tuple[torch.Tensor, Exception | None, int]:
    """Merge on the current stream, as `Bucket.merge`, from and to bytes on the device.

    On an error, the core repeats it on copies for the message; residuals may have changed.
    """
    device, used = data.device, np.flatnonzero(np.logical_not(ranges.unused)).tolist()
    found = heads(data, bounds, _PARTS * len(ranges.codecs))
    messages = zip(found, bounds[::2], bounds[1::2], strict=True)
    parts = [_parts(rows, start, stop, ranges.numels) for rows, start, stop in messages]
    whole = [each for each in parts if each is not None]
    nothing = torch.empty(0, dtype=torch.uint8, device=device)
    if len(whole) < len(parts):
        return nothing, *_host_error(data, bounds, ranges)
    if not used:
        return nothing, None, 0
    numels = [ranges.numels[i] for i in used]
    ends = encoding.ends_of(numels)
    sums, verdicts = _add_up(data, [[each[i] for i in used] for each in whole], ends)
    codecs, states = [ranges.codecs[i] for i in used], [ranges.states[i] for i in used]
    places = zip(used, codecs, states, ends[::2], ends[1::2], strict=True)
    joined = [
        _Joined(i, state, ranges.ends[2 * i], sums[begin:end])
        for i, codec, state, begin, end in places
        if codec.sparsify.selects and codec.memory.keeps
    ]
    most = [
        _most(codec, state, numel, sum(int(rows[i][:, _COUNT].sum()) for rows in whole), len(whole))
        for i, codec, state, numel in zip(used, codecs, states, numels, strict=True)
    ]
    out, table = _encode(sums, ends, codecs, states, most)
    rows, *failed = staging(device).read_all([table, *(each[:1] for each in verdicts)])
    if any(map(int, failed)) or rows[:, STATUS].any():
        for each in joined:
            each.undo()
        overflows = next(filter(None, (each.overflow() for each in joined)), None)
        return nothing, *_host_error(data, bounds, ranges, overflows)
    sizes = rows[:, NBYTES].tolist()
    bad = _absorb(sums, ends, codecs, states, [ranges.ends[2 * i] for i in used], out, sizes)
    if bad is not None:
        at, error = bad
        return nothing, error, used[at]
    return out[: sum(sizes)], None, len(ranges.codecs)


class _Joined:
    """The residual of a range, which takes part in its sums and has gone from the state."""

    def __init__(self, at: int, state: DeviceState, start: int, sums: torch.Tensor) -> None:
        self._at, self._state, self._start, self._sums = at, state, start, sums
        self._own = state.join(start, sums)

    def undo(self) -> None:
        self._state._lower(self._start, self._own, self._state.step)

    def overflow(self) -> tuple[NonFiniteError, int] | None:
        """Return the error of sums that are not finite, and the range; None if all are."""
        bad = torch.nonzero(~torch.isfinite(self._sums))
        if not len(bad):
            return None
        return NonFiniteError(len(bad), int(bad[0]), self._state.name), self._at


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
    data: torch.Tensor, parts: Sequence[Sequence[NDArray[np.int64]]], ends: Sequence[int]
) -> tuple[torch.Tensor, list[torch.Tensor]]:
    """Return the sums of all ranks' frames, and whether each frame was valid."""
    sums = torch.zeros(ends[-1], dtype=torch.float32, device=data.device)
    every = [np.concatenate(rank) for rank in parts]
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


def _most(codec: Codec, state: DeviceState, numel: int, sent: int, ranks: int) -> int:
    """Return how many sums of a range may be sent; -1 for all of them, including zeros."""
    if not codec.sparsify.selects:
        return -1
    target = None if state.last is None else state.last["target"]
    if codec.sparsify.kind in _TARGETED and target == state.numel:
        return numel
    return min(-(-_SUMS[0] * sent // (_SUMS[1] * ranks)), numel)


def _encode(
    sums: torch.Tensor,
    ends: Sequence[int],
    codecs: Sequence[Codec],
    states: Sequence[DeviceState],
    most: Sequence[int],
) -> tuple[torch.Tensor, torch.Tensor]:
    """Encode sums, at most ``most`` of each range; return the frames and their table."""
    again = [_sum_codec(codec.quantize, codec.indices, codec.sparsify.selects) for codec in codecs]
    named = [codec.sparsify.kind if codec.sparsify.selects else None for codec in codecs]
    plan = states[0].plans.of(again, ends, sums, named=named)
    limits = [
        codec._codec.max_encoded_len(numel, None if few < 0 else few)
        for codec, numel, few in zip(codecs, plan.numels, most, strict=True)
    ]
    out = torch.empty(sum(limits), dtype=torch.uint8, device=sums.device)
    return out, plan.encode(sums, limits, _merge_states(states, sums.device), 1.0, out, most=most)


@dataclass(frozen=True, slots=True)
class _SumCodec:
    """The codec for sums, as a key of its own: no other use may share its plans."""

    sparsify: Sparsifier
    quantize: Quantizer
    indices: object
    memory: NoMemory


@functools.lru_cache(256)
def _sum_codec(quantize: Quantizer, indices: object, selects: bool) -> Codec:
    """Return the codec that encodes sums; the same object for the same parts."""
    sparsify = TopK(ratio=1.0) if selects else All()
    return cast("Codec", _SumCodec(sparsify, quantize, indices, NoMemory()))


def _merge_states(states: Sequence[DeviceState], device: torch.device) -> list[torch.Tensor]:
    """Return states without a memory, seeded for a merge in this step."""
    rows = torch.zeros((len(states), ROOM), dtype=torch.uint8, device="cpu")
    for row, state in zip(rows, states, strict=True):
        struct = structs.State(tensor=structs.tensor_id(state.name), step=state.step, rate=1.0)
        struct.stream = state.stream ^ _MERGING
        row[: ctypes.sizeof(struct)] = torch.frombuffer(bytearray(struct), dtype=torch.uint8)
    return list(staging(device).upload(rows))


def _absorb(
    sums: torch.Tensor,
    ends: Sequence[int],
    codecs: Sequence[Codec],
    states: Sequence[DeviceState],
    begins: Sequence[int],
    frames: torch.Tensor,
    sizes: Sequence[int],
) -> tuple[int, NonFiniteError] | None:
    """Add the unsent rest of sums to residuals; return the first range with a non-finite one."""
    keeps = [i for i, codec in enumerate(codecs) if codec.memory.keeps]
    if not keeps:
        return None
    starts = list(itertools.accumulate(sizes[:-1], initial=0))
    kept = [states[i] for i in keeps]
    with undoable(kept) as tensors:
        outcomes = operators().absorb_bucket(
            completed([codecs[i] for i in keeps], [state.numel for state in kept]),
            *(tensors, [begins[i] for i in keeps], sums),
            *([end for i in keeps for end in ends[2 * i : 2 * i + 2]], frames),
            *([starts[i] for i in keeps], [sizes[i] for i in keeps]),
        )
        found = staging(sums.device).read(outcomes).numpy().view(np.int64).reshape(-1, 2)
    for i, (count, first) in zip(keeps, found.tolist(), strict=True):
        if count:
            return i, NonFiniteError(count, first, states[i].name)
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
