"""Buckets on a GPU: read and overwritten where they are."""

import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray

from gradwire.torch.backends.cpu import buckets as cpu
from gradwire.torch.backends.cuda import decoding, encoding
from gradwire.torch.backends.cuda.plans import takes
from gradwire.torch.backends.cuda.states import State
from gradwire.torch.backends.host import buckets as host
from gradwire.torch.backends.interface import Led, Table

if TYPE_CHECKING:
    import gradwire.state
    from gradwire.codec import Codec

__all__ = ["Bucket", "bucket"]


def bucket(buffer: torch.Tensor) -> "Bucket":
    """Return a bucket that will be read once its gradients are there."""
    return Bucket(buffer)


class Bucket(host.Bucket):
    """A bucket whose values the kernels read and write where they are.

    The sending thread works on the stream of copies down and the receiving thread on that of copies
    up, as for a bucket that is copied. What kernels do not encode, the core encodes from a copy.
    """

    __slots__ = ()

    @property
    def values(self) -> torch.Tensor:
        """The gradients on the device, and later their averages."""
        return self.buffer

    def _copied(self) -> cpu.Bucket:
        """Return a bucket on the host, of a copy that is made once."""
        if self._staged is None:
            self._staged = self._staging.fetch(self.buffer, self._after)
        return cpu.bucket(self._staged)

    # The sending thread -----------------------------------------------------------------------

    def encode(
        self,
        codecs: Sequence["Codec"],
        states: Sequence[Any],
        ends: Sequence[int],
        limits: Sequence[int],
        positions: Sequence[NDArray[np.uint32] | None],
        out: torch.Tensor,
        scale: float,
    ) -> tuple[Table, Exception | None]:
        """Encode parameters by kernels if those take all of them, else by the core."""
        own = [state for state in states if isinstance(state, State)]
        given = any(each is not None for each in positions)
        if given or len(own) < len(states) or not all(map(takes, codecs)):
            held = [_on_host(state) for state in states]
            return self._copied().encode(codecs, held, ends, limits, positions, out, scale)
        start = time.perf_counter()
        with self._staging.reading(self._after):
            made = encoding.encode(codecs, own, ends, limits, self.buffer, scale)
            out[: made.nbytes].copy_(self._staging.read(made.frames[: made.nbytes]))
        done = len(made.rows)
        table = np.zeros((done, 6), np.int64)
        table[:, :5] = made.rows
        table[:, 5] = _shares(start, ends[: 2 * done])
        if done == len(codecs):
            return table, None
        # The core says what is wrong; where it finds nothing, it has encoded.
        one, pair = slice(done, done + 1), slice(2 * done, 2 * done + 2)
        room = torch.empty(limits[done], dtype=torch.uint8, device="cpu")
        _, error = self._copied().encode(
            codecs[one], [own[done].on_host()], ends[pair], limits[one], (), room, scale
        )
        if error is None:
            own[done].rollback()
            error = RuntimeError("kernels refuse a gradient that the core encodes")
        return table, error

    def lead(
        self,
        codec: "Codec",
        state: Any,
        start: int,
        stop: int,
        limit: int,
        scale: float,
    ) -> Led | None:
        """Encode one parameter on the host, where others' positions are read too."""
        return self._copied().lead(codec, _on_host(state), start, stop, limit, scale)

    def gradient(self, start: int, stop: int, scale: float) -> NDArray[Any]:
        """Return a part of a copy."""
        return self._copied().gradient(start, stop, scale)

    def pack(self, runs: Sequence[tuple[int, int]], out: torch.Tensor) -> bool:
        """Copy runs of entries to the host, all at once; tell whether all of them are finite."""
        with self._staging.reading(self._after):
            packed = torch.cat([self.buffer[start:stop] for start, stop in runs])
            out.copy_(self._staging.read(packed))
        return bool(torch.isfinite(out).all())

    def not_finite(self, start: int, stop: int, width: int) -> tuple[int, int]:
        """Return the number of non-finite entries, and the first's place."""
        return self._copied().not_finite(start, stop, width)

    def sparse(self) -> torch.Tensor:
        """Return a copy of the sparse tensor on the host."""
        return self._copied().values

    # The receiving thread ---------------------------------------------------------------------

    def average(
        self,
        frames: torch.Tensor,
        starts: Sequence[int],
        sizes: Sequence[Sequence[int]],
        ends: Sequence[int],
        unused: Sequence[bool],
        senders: bool,
        scale: float,
    ) -> NDArray[np.int64]:
        """Decode and average by kernels; frames that these do not read, by the core."""
        began = time.perf_counter()
        offsets = np.cumsum([[start, *own] for start, own in zip(starts, sizes, strict=True)], 1)
        kept = [i for i, each in enumerate(unused) if not each]
        used = [end for i in kept for end in (ends[2 * i], ends[2 * i + 1])]
        with self._staging.writing(self._after):
            done = not kept or decoding.decode(
                self.buffer,
                self._staging.upload(frames),
                used,
                [int(offset) for i in kept for offset in offsets[:, i]],
                [own[i] for i in kept for own in sizes],
                len(starts),
                decoding.SENDERS if senders else decoding.RANKS,
                scale,
            )
            if done:
                for i in np.flatnonzero(unused).tolist():
                    self.clear(ends[2 * i], ends[2 * i + 1])
                return _shares(began, ends)
            copied = self._copied()
            spent = copied.average(frames, starts, sizes, ends, unused, senders, scale)
            self.buffer.copy_(copied.values)
        return spent

    def unpack(self, runs: Sequence[tuple[int, int]], values: torch.Tensor) -> None:
        """Copy values to the runs that `pack` read."""
        with self._staging.writing(self._after):
            super().unpack(runs, self._staging.upload(values, self.dtype))

    def clear(self, start: int, stop: int) -> None:
        """Write zeros."""
        with self._staging.writing(self._after):
            super().clear(start, stop)

    def scatter(self, places: Sequence[NDArray[np.int64]], values: torch.Tensor) -> None:
        """Write values to places, of which no two are the same."""
        stage = self._staging
        with stage.writing(self._after):
            at = stage.upload(torch.from_numpy(np.concatenate(places)))
            self.buffer[at] = stage.upload(values, self.dtype)

    def finite(self) -> bool:
        """Tell whether every entry is finite."""
        self._staged = None  # of the gradients: what is not finite is named from what is there now
        with self._staging.writing(self._after):
            return super().finite()

    def _holds(self, flag: torch.Tensor) -> bool:
        return bool(self._staging.read(flag))

    def store(self, result: torch.Tensor | None = None) -> None:
        """Copy a sparse result to the device; everything else is there."""
        if result is not None:
            with self._staging.writing(self._after):
                self._result = result.to(self.buffer.device)
        self._staged = None


def _on_host(state: Any) -> "gradwire.state.State":
    held: gradwire.state.State = state.on_host() if isinstance(state, State) else state
    return held


def _shares(start: float, ends: Sequence[int]) -> NDArray[np.int64]:
    """Return the nanoseconds since a time, shared out by length: kernels work on all at once."""
    numels = np.diff(np.array(ends, np.int64).reshape(-1, 2), axis=1)[:, 0]
    spent = 1e9 * (time.perf_counter() - start)
    return (spent * numels / max(int(numels.sum()), 1)).astype(np.int64)
