"""Buckets on a GPU, read and overwritten there."""

import copy
import itertools
import time
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from typing_extensions import override

from gradwire._codec import Codec
from gradwire.torch.backends.cpu import Encoded, SlotOrder, Table
from gradwire.torch.backends.cuda import encoding, merging
from gradwire.torch.backends.cuda.operators import takes
from gradwire.torch.backends.cuda.slots import FilledSlot
from gradwire.torch.backends.cuda.states import DeviceState, is_on_device
from gradwire.torch.backends.host import DeviceBucket
from gradwire.torch.backends.staging import naming_loss, staging

_NONE = np.empty(0, np.uint32)


def bucket(buffer: torch.Tensor, on_device: bool = False) -> "CUDABucket":
    """Return a bucket that is read once its gradients are computed."""
    return CUDABucket(buffer, staging(buffer.device), on_device=on_device)


class CUDABucket(DeviceBucket):
    """A bucket whose values the kernels read and write on the device.

    Parameters without kernels are encoded from a copy, by the core.
    """

    __slots__ = ()

    # The sending thread -----------------------------------------------------------------------

    @override
    def encode(
        self,
        codecs: Sequence[Codec],
        states: Sequence[Any],
        ends: Sequence[int],
        limits: Sequence[int],
        positions: Sequence[NDArray[np.uint32] | None],
        out: torch.Tensor,
        scale: float,
    ) -> tuple[Table, Exception | None]:
        if not _are_for_kernels(states, codecs):
            held = [state.on_host() for state in states]
            frames = out
            if self._on_device:
                frames = self._stage.empty(torch.Size([sum(limits)]), torch.uint8)
            encoded = super().encode(codecs, held, ends, limits, positions, frames, scale)
            if self._on_device:
                nbytes = int(encoded[0].reshape(-1, 6)[:, 0].sum())
                self._stage.write(out[:nbytes], frames[:nbytes])
            return encoded
        start, frames = time.perf_counter(), out
        if not self._on_device:
            frames = torch.empty(sum(limits), dtype=torch.uint8, device=self.buffer.device)
        started = encoding.start(
            codecs, states, ends, limits, self.buffer, scale, frames, positions
        )
        reads = [started.table] if self._on_device else [started.table, frames]
        table_read, *sent = self._stage.read_all(
            reads
        )  # frames with the room that limits leave them
        rows = started.outcomes(table_read.numpy())
        done, nbytes = len(rows), int(rows[:, 0].sum())
        for frames_read in sent:
            out[:nbytes].copy_(frames_read[:nbytes])
        table = np.column_stack([rows, _shares(start, ends)[:done]])
        if done == len(codecs):
            return table, None
        # The core says what is wrong, with a copy of the state.
        one, pair = slice(done, done + 1), slice(2 * done, 2 * done + 2)
        room = torch.empty(limits[done], dtype=torch.uint8, device="cpu")
        twin = copy.deepcopy(states[done]).on_host()
        _, error = super().encode(
            codecs[one], [twin], ends[pair], limits[one], positions[one], room, scale
        )
        return table, error or RuntimeError("kernels refuse a gradient that the core encodes")

    @override
    def split(
        self,
        codecs: Sequence[Codec],
        frames: torch.Tensor,
        sizes: Sequence[int],
        counts: Sequence[int],
        bounds: Sequence[Sequence[int]],
        owners: Sequence[Sequence[int]],
        ranks: int,
    ) -> list[torch.Tensor]:
        if self._on_device and codecs and all(map(takes, codecs)):
            with naming_loss(frames.device):
                cut = merging.split(codecs, frames, sizes, counts, bounds, owners, ranks)
            if cut is not None:
                return cut
        return super().split(codecs, frames, sizes, counts, bounds, owners, ranks)

    @override
    def fills(self, parameters: Sequence[Encoded]) -> bool:
        codecs, states = [slot.codec for slot in parameters], [slot.state for slot in parameters]
        return self._on_device and (not codecs or _are_for_kernels(states, codecs))

    @override
    def fill(self, slot: torch.Tensor, order: SlotOrder) -> FilledSlot:
        with naming_loss(self.buffer.device):
            return FilledSlot(self.buffer, slot, order)

    @override
    def values_of(
        self, frames: torch.Tensor, sizes: Sequence[int], numels: Sequence[int], positions: bool
    ) -> tuple[torch.Tensor, NDArray[np.uint32]]:
        if self._on_device and numels and not positions:
            ends = encoding.ends_of(numels)
            starts = list(itertools.accumulate(sizes[:-1], initial=0))
            values = torch.empty(ends[-1], dtype=torch.float32, device=frames.device)
            if encoding.decode(values, frames, ends, starts, sizes, 1, encoding.PLACE, 1.0):
                return values, _NONE
        return super().values_of(frames, sizes, numels, positions)

    # The receiving thread ---------------------------------------------------------------------

    @override
    def average(
        self,
        frames: torch.Tensor,
        starts: Sequence[int],
        sizes: Sequence[Sequence[int]],
        ends: Sequence[int],
        unused: Sequence[bool],
        senders: bool,
        scale: float,
        ranks: int | None = None,
    ) -> NDArray[np.int64]:
        began = time.perf_counter()
        offsets = np.cumsum(
            [[start, *lengths] for start, lengths in zip(starts, sizes, strict=True)], 1
        )
        into = encoding.SENDERS if senders else encoding.RANKS
        lengths = np.array(sizes).T.tolist()
        places, over = offsets[:, :-1].T.tolist(), ranks or 0
        if self._decode(frames, places, lengths, ends, unused, into, scale, over):
            return _shares(began, ends)
        self._host = None  # of the gradients: uncompressed averages may be there by now
        return super().average(frames, starts, sizes, ends, unused, senders, scale, ranks)

    def _decode(
        self,
        frames: torch.Tensor,
        starts: Sequence[Sequence[int]],
        sizes: Sequence[Sequence[int]],
        ends: Sequence[int],
        unused: Sequence[bool],
        into: int,
        scale: float,
        over: int,
    ) -> bool:
        """Decode the frames of each range by kernels, and clear unused ranges, if they can."""
        used = [i for i, skipped in enumerate(unused) if not skipped]
        done = not used or encoding.decode(
            self.buffer,
            frames if self._on_device else self._stage.upload(frames),
            [end for i in used for end in ends[2 * i : 2 * i + 2]],
            [start for i in used for start in starts[i]],
            [nbytes for i in used for nbytes in sizes[i]],
            len(starts[used[0]]),
            into,
            scale,
            over,
        )
        if done:
            for i in np.flatnonzero(unused).tolist():
                self.clear(ends[2 * i], ends[2 * i + 1])
        return done

    @override
    def merge(
        self,
        received: torch.Tensor,
        bounds: Sequence[int],
        codecs: Sequence[Codec],
        states: Sequence[Any],
        ends: Sequence[int],
        unused: Sequence[bool],
    ) -> tuple[torch.Tensor, Exception | None, int]:
        # By what has encoded: only that can undo both.
        if states and not any(is_on_device(state) for state in states):
            held = [state.on_host() for state in states]
            return super().merge(received, bounds, codecs, held, ends, unused)
        with naming_loss(self.buffer.device):
            if not self._on_device:
                received = self._stage.upload(received)
            owned = merging.Ranges(codecs, states, ends, unused)
            frames, error, at = merging.merge(received, bounds, owned)
            return (frames if self._on_device else self._stage.read(frames)), error, at

    @override
    def frame_sizes(
        self, data: torch.Tensor, bounds: Sequence[int], counts: Sequence[int]
    ) -> list[list[int] | None]:
        if not self._on_device:
            return super().frame_sizes(data, bounds, counts)
        with naming_loss(data.device):
            rows = merging.heads(data, bounds, max(counts, default=0))[:, :, 1]
        sizes_read = [row[:count].tolist() for row, count in zip(rows, counts, strict=True)]
        lengths = np.diff(np.array(bounds).reshape(-1, 2), axis=1)[:, 0].tolist()
        return [
            sizes if all(sizes) and sum(sizes) == length else None
            for sizes, length in zip(sizes_read, lengths, strict=True)
        ]

    @override
    def average_sums(
        self,
        frames: torch.Tensor,
        starts: Sequence[int],
        sizes: Sequence[Sequence[int]],
        ends: Sequence[Sequence[int]],
        unused: Sequence[Sequence[bool]],
        scale: float,
        ranks: int,
    ) -> list[NDArray[np.int64]]:
        began = time.perf_counter()
        places = [
            [at]
            for start, lengths in zip(starts, sizes, strict=True)
            for at in itertools.accumulate(lengths[:-1], initial=start)
            if lengths
        ]
        lengths = [[nbytes] for lengths in sizes for nbytes in lengths]
        every, skipped = list(itertools.chain(*ends)), list(itertools.chain(*unused))
        if self._decode(frames, places, lengths, every, skipped, encoding.RANKS, scale, ranks):
            return [_shares(began, pairs) for pairs in ends]
        return super().average_sums(frames, starts, sizes, ends, unused, scale, ranks)


def _are_for_kernels(states: Sequence[Any], codecs: Sequence[Codec]) -> bool:
    """Tell whether kernels encode with these states, which are then all on a device."""
    return set(map(type, states)) == {DeviceState} and states[0].plans.takes(codecs)


def _shares(start: float, ends: Sequence[int]) -> NDArray[np.int64]:
    """Return the nanoseconds since a time, divided by length: kernels process all at once."""
    numels = np.diff(np.array(ends, np.int64).reshape(-1, 2), axis=1)[:, 0]
    spent = 1e9 * (time.perf_counter() - start)
    return (spent * numels / max(int(numels.sum()), 1)).astype(np.int64)
