"""Buckets on the CPU: read and overwritten in place."""

import threading
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray

from gradwire import _native
from gradwire.torch.backends import interface
from gradwire.torch.backends.interface import LeaderEncoding, Table

if TYPE_CHECKING:
    from gradwire.codec import Codec
    from gradwire.frame import Frame
    from gradwire.state import State

__all__ = ["Bucket", "bucket", "encode_until_fits", "finite"]

_LEAST = 64  # smallest limit of a frame in bytes: its header must fit
_TRIES = 8
_BLOCK = 1 << 14

_CPU = torch.device("cpu")
_scratch = threading.local()


def bucket(buffer: torch.Tensor, carried: bool = False) -> "Bucket":
    """Return a bucket that is its buffer."""
    del carried  # where the frames are, in any case
    return Bucket(buffer, torch.futures.Future())


class Bucket(interface.Bucket):
    """A bucket whose values the core reads and writes where they are.

    Attributes
    ----------
    values : torch.Tensor
        The gradients on the CPU, and later their averages.
    """

    __slots__ = ("_result",)

    def __init__(self, buffer: torch.Tensor, future: "torch.futures.Future[torch.Tensor]") -> None:
        super().__init__(buffer, future)
        self._result = buffer

    @property
    def values(self) -> torch.Tensor:
        """The gradients on the CPU, and later their averages."""
        return self.buffer

    @property
    def frames_on(self) -> torch.device:
        """The CPU."""
        return _CPU

    # The sending thread -----------------------------------------------------------------------

    def wait(self) -> None:
        """Return: the CPU is where the caller is."""

    def encode(
        self,
        codecs: Sequence["Codec"],
        states: Sequence["State"],
        ends: Sequence[int],
        limits: Sequence[int],
        positions: Sequence[NDArray[np.uint32] | None],
        out: torch.Tensor,
        scale: float,
        *,
        deferred: bool = False,
    ) -> tuple[Table, Exception | None]:
        """Encode parameters with one call of the core."""
        return _native.encode_bucket(
            _flat(self.values),
            scale,
            [codec._codec for codec in codecs],
            states,
            ends,
            limits,
            positions,
            out.numpy(),
            self.dtype == torch.bfloat16,
            deferred,
        )

    def encode_leader(
        self, codec: "Codec", state: "State", start: int, stop: int, limit: int, scale: float
    ) -> LeaderEncoding | None:
        """Encode one parameter until its positions fit."""
        source = self.gradient(start, stop, scale)
        blocks = torch.split(self.values[start:stop], _BLOCK)  # read until one is not zero
        zero = not any(bool(each.any()) for each in blocks)
        return encode_until_fits(
            lambda room: (codec.encode(source, state, max_nbytes=room), zero), state, limit
        )

    def gradient(self, start: int, stop: int, scale: float) -> NDArray[Any]:
        """Return a gradient in place, or converted to float32 and without the loss scale."""
        gradient = self.values[start:stop]
        if scale == 1.0 and gradient.dtype != torch.bfloat16:
            return gradient.numpy()
        # Converted to float32 first: dividing in float16 would underflow small gradients.
        source = _float32(gradient.numel()).copy_(gradient)
        return (source if scale == 1.0 else source.div_(scale)).numpy()

    def write_header(self, slot: torch.Tensor, front: NDArray[np.uint8]) -> None:
        """Write bytes to the start of a slot."""
        slot.numpy()[: front.size] = front

    def values_of(
        self, frames: torch.Tensor, sizes: Sequence[int], numels: Sequence[int], positions: bool
    ) -> tuple[torch.Tensor, NDArray[np.uint32]]:
        """Return the values of frames, and their positions if asked to."""
        del numels
        values, places = _native.read_bucket(frames.numpy(), sizes, positions)
        return torch.from_numpy(values), places

    def pack(self, runs: Sequence[tuple[int, int]], out: torch.Tensor) -> bool:
        """Copy runs of entries behind each other; tell whether all of them are finite."""
        values, at = self.values, 0
        for start, stop in runs:
            out[at : at + stop - start] = values[start:stop]
            at += stop - start
        return finite(out)

    def not_finite(self, start: int, stop: int, width: int) -> tuple[int, int]:
        """Return the number of non-finite entries, and the first's place."""
        bad = ~torch.isfinite(self.values[start:stop])
        if width > 1:
            bad = bad.view(-1, width).any(1)
        count = int(bad.sum())
        return count, int(bad.nonzero()[0]) if count else 0

    def sparse(self) -> torch.Tensor:
        """Return the sparse tensor."""
        return self.values

    # The receiving thread ---------------------------------------------------------------------

    def read_headers(self, slots: torch.Tensor, nbytes: int) -> NDArray[np.uint8]:
        """Return the first bytes of each slot, in place."""
        fronts: NDArray[np.uint8] = slots[:, :nbytes].numpy()
        return fronts

    def scratch(self) -> interface.Bucket:
        """Return a bucket in memory of its own."""
        return bucket(torch.empty_like(self.values))

    def commit(
        self,
        states: Sequence["State"],
        ends: Sequence[int],
        frames: torch.Tensor,
        starts: Sequence[int],
        sizes: Sequence[int],
        scale: float,
    ) -> None:
        """Write memories with one call of the core."""
        _native.settle_bucket(
            _flat(self.values),
            scale,
            states,
            ends,
            frames.numpy(),
            starts,
            sizes,
            self.dtype == torch.bfloat16,
        )

    def average(
        self,
        frames: torch.Tensor,
        starts: Sequence[int],
        sizes: Sequence[Sequence[int]],
        ends: Sequence[int],
        unused: Sequence[bool],
        senders: bool,
        scale: float,
        *,
        ranks: int | None = None,
    ) -> NDArray[np.int64]:
        """Decode and average with one call of the core."""
        sums = {} if ranks is None else {"ranks": ranks}
        return _native.average_bucket(
            frames.numpy(),
            starts,
            sizes,
            ends,
            unused,
            _flat(self.values),
            scale,
            senders,
            self.dtype == torch.bfloat16,
            **sums,
        )

    def unpack(self, runs: Sequence[tuple[int, int]], values: torch.Tensor) -> None:
        """Write values to the runs that `pack` read."""
        own, at = self.values, 0
        for start, stop in runs:
            own[start:stop] = values[at : at + stop - start]
            at += stop - start

    def clear(self, start: int, stop: int) -> None:
        """Write zeros."""
        self.values[start:stop].zero_()

    def scatter(self, places: Sequence[NDArray[np.int64]], values: torch.Tensor) -> None:
        """Write values to places, of which no two are the same."""
        self.values[torch.from_numpy(np.concatenate(places))] = values.to(self.dtype)

    def finite(self) -> bool:
        """Tell whether every entry is finite."""
        return finite(self.values, self._holds)

    def _holds(self, flag: torch.Tensor) -> bool:
        """Return the value of a flag."""
        return bool(flag)

    def store(self, result: torch.Tensor | None = None) -> None:
        """Remember a sparse result; everything else is in place."""
        if result is not None:
            self._result = result

    def resolve(self, *, poisoned: bool) -> None:
        """Resolve the future."""
        self.future.set_result(_poison(self._result) if poisoned else self._result)


def finite(values: torch.Tensor, holds: Callable[[torch.Tensor], bool] = bool) -> bool:
    """Tell whether every entry is finite, in one read and without temporary memory.

    Parameters
    ----------
    values : torch.Tensor
        Floating-point numbers.
    holds : callable
        Returns the value of a flag that lies where the values do.
    """
    # The sum of finite values may overflow; then check every entry.
    total = values.sum(dtype=torch.promote_types(values.dtype, torch.float32))
    return holds(torch.isfinite(total)) or holds(torch.isfinite(values).all())


def encode_until_fits(
    encode: "Callable[[int | None], tuple[Frame, bool]]", state: "State", limit: int
) -> LeaderEncoding | None:
    """Encode one parameter until its positions fit.

    Parameters
    ----------
    encode : callable
        Encodes with a maximum size in bytes; returns the frame, and whether the gradient is zero.
    state : State
        That it encodes with.
    limit : int
        Bytes of positions at most.
    """
    began = time.perf_counter()
    frame, zero = encode(None)
    positions = _native.pack_positions(frame)
    wanted = len(positions)
    room = frame.nbytes
    tries = 0
    while len(positions) > limit:
        if tries == _TRIES:
            return None
        tries += 1
        # Entries that are left out stay in the residual, as with a full slot.
        room = max(_LEAST, room * limit // len(positions) - 8)
        state.rollback()
        frame, zero = encode(room)
        positions = _native.pack_positions(frame)
    last = state.last
    assert last is not None  # it has just encoded
    target = -1 if last["target"] is None else last["target"]
    nanoseconds = round(1e9 * (time.perf_counter() - began))
    row = [frame.nbytes, frame.count, target, last["trimmed"], zero, nanoseconds]
    values = torch.from_numpy(frame.values())
    return LeaderEncoding(positions, wanted, values, np.array(row, np.int64))


def _flat(values: torch.Tensor) -> NDArray[Any]:
    """Return an array that shares the memory of a flat tensor; bfloat16 as uint16."""
    array = values.view(torch.uint16) if values.dtype == torch.bfloat16 else values
    shared: NDArray[Any] = array.numpy()
    return shared


def _float32(numel: int) -> torch.Tensor:
    """Return memory that the next call in this thread returns again."""
    kept: torch.Tensor | None = getattr(_scratch, "kept", None)
    if kept is None or kept.numel() < numel:
        kept = _scratch.kept = torch.empty(numel, dtype=torch.float32, device="cpu")
    return kept[:numel]


def _poison(result: torch.Tensor) -> torch.Tensor:
    """Return an infinite bucket: filled in place, or a sparse tensor with infinite entries."""
    if result.layout == torch.strided:
        return result.fill_(torch.inf)
    dims = result.sparse_dim()
    at = torch.zeros((dims, 1), dtype=torch.int64, device=result.device)
    shape = (1, *result.shape[dims:])
    values = torch.full(shape, torch.inf, dtype=result.dtype, device=result.device)
    return torch.sparse_coo_tensor(at, values, result.shape, is_coalesced=True)
