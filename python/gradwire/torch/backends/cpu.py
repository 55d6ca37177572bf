"""Tensors on the CPU: the Rust core reads and writes them in place, through numpy.

A tensor is passed on as an array that shares its memory, without a copy, in about two microseconds.
numpy has no bfloat16, so bfloat16 tensors are passed as uint16 with a flag.

`Bucket` is the base class of the other backends' buckets: its docstrings are their contract.
"""

import operator
import struct
import threading
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from typing_extensions import Buffer

from gradwire import _native
from gradwire._codec import Codec
from gradwire.frame import Frame
from gradwire.state import State

name = "cpu"
waits = False
can_stay_on_device = values_stay = False

INPUTS = (torch.float32, torch.float64, torch.float16, torch.bfloat16)
OUTPUTS = (torch.float32,)
BYTES = (torch.uint8,)

FrameBytes: TypeAlias = Frame | Buffer | torch.Tensor  # one to decode; a tensor on any device
# One row a parameter: bytes, entries sent, entries asked for or -1, entries trimmed, whether the
# gradient was zero, nanoseconds.
Table: TypeAlias = NDArray[np.int64]

_HEADER_NBYTES = 48
_SECTIONS = struct.Struct("<QQ")  # bytes of both sections, in the header of a frame
_SECTIONS_AT = 32

_HOST = torch.device("cpu")
_BLOCK = nullcontext()  # of a thread without a stream of its own
_CORE = operator.attrgetter("_codec")  # the codec of the core
_scratch = threading.local()

# One tensor ---------------------------------------------------------------------------------------


def encode(
    codec: Codec, tensor: torch.Tensor, state: State | None, max_nbytes: int | None
) -> Frame:
    """Encode a tensor in place."""
    array, bfloat16 = shared(tensor)
    return codec._encode(array, state, max_nbytes, bfloat16)


def encode_into(
    codec: Codec,
    tensor: torch.Tensor,
    state: State | None,
    out: torch.Tensor,
    max_nbytes: int | None,
) -> int:
    """Encode a tensor into another one, both in place."""
    array, bfloat16 = shared(tensor)
    target = _writable(out, BYTES)
    # Before the encode: whatever ran after it could be interrupted and lose the length.
    bump_version(out)
    return codec._encode_into(array, state, target, max_nbytes, bfloat16)


def decode(frame: FrameBytes, out: torch.Tensor | None, max_numel: int | None) -> torch.Tensor:
    """Decode to a new tensor, or in place."""
    if out is None:
        return torch.from_numpy(_native.decode(_bytes(frame), None, max_numel))
    _native.decode(_bytes(frame), _writable(out, OUTPUTS), max_numel)
    bump_version(out)
    return out


def decode_add(frame: FrameBytes, out: torch.Tensor, scale: float) -> None:
    """Decode and add in place."""
    _native.decode_add(_bytes(frame), _writable(out, OUTPUTS), scale)
    bump_version(out)


def number(tensor: torch.Tensor) -> Callable[[], float]:
    """Read a number now, and return it later."""
    value = float(tensor)
    return lambda: value


def shared(tensor: torch.Tensor) -> tuple[NDArray[Any], bool]:
    """Return an array that shares a tensor's memory, and whether it holds bfloat16 as uint16."""
    check(tensor, "tensor", INPUTS)
    if tensor.requires_grad:
        tensor = tensor.detach()
    return array_of(tensor), tensor.dtype is torch.bfloat16


def array_of(tensor: torch.Tensor) -> NDArray[Any]:
    """Return an array that shares the memory of a tensor; bfloat16 as uint16."""
    array = tensor.view(torch.uint16) if tensor.dtype is torch.bfloat16 else tensor
    shared: NDArray[Any] = array.numpy()
    return shared


def _writable(out: torch.Tensor, dtypes: tuple[torch.dtype, ...]) -> NDArray[Any]:
    check_out(out, dtypes)
    return out.detach().numpy() if out.requires_grad else out.numpy()


def _bytes(frame: FrameBytes) -> Frame | Buffer | NDArray[np.uint8]:
    if not isinstance(frame, torch.Tensor):
        return frame
    check(frame, "frame", BYTES)
    array: NDArray[np.uint8] = frame.numpy()
    return array


def check(tensor: torch.Tensor, name: str, dtypes: tuple[torch.dtype, ...]) -> None:
    """Raise a TypeError or ValueError unless a tensor is dense, contiguous and of such a dtype."""
    if not isinstance(tensor, torch.Tensor):
        raise TypeError(f"{name} must be a torch.Tensor, got {type(tensor).__name__}")
    # These checks must not cost more than encoding a bias: `device.type` alone takes half a
    # microsecond, and only the message needs it.
    if tensor.layout is not torch.strided:
        raise TypeError(f"{name} must be dense, got layout {tensor.layout}; pass .to_dense()")
    if tensor.is_meta:
        raise TypeError(f"{name} must have values, got one on {tensor.device}")
    if tensor.dtype not in dtypes:
        expected = ", ".join(str(dtype) for dtype in dtypes)
        raise TypeError(f"{name} must have dtype {expected}, got {tensor.dtype}")
    if not tensor.is_contiguous():
        raise ValueError(
            f"{name} must be contiguous, got shape {tuple(tensor.shape)} with strides "
            f"{tensor.stride()}; pass {name}.contiguous()"
        )


def check_out(out: torch.Tensor, dtypes: tuple[torch.dtype, ...]) -> None:
    """Raise as `check`, or a ValueError for a tensor that must not be written to."""
    check(out, "out", dtypes)
    if out.requires_grad and torch.is_grad_enabled():
        raise ValueError(
            "out requires gradients, which cannot flow through a frame; "
            "pass out.detach(), or call under torch.no_grad()"
        )


def bump_version(out: torch.Tensor) -> None:
    """Increment the version of a tensor: autograd may have saved it and must notice the write.

    Inference tensors have no version.
    """
    if not out.is_inference():
        torch.autograd.graph.increment_version(out)


# States ------------------------------------------------------------------------------------------


def init_state(codec: Codec, numel: int, name: str | None, stream: int) -> State:
    """Return a new state."""
    return codec.init_state(numel, name=name, stream=stream)


def rollback(states: Sequence[State]) -> None:
    """Undo the last encode of each state."""
    for state in states:
        state.rollback()


def held(state: Any) -> list[object]:
    """Return the contents of a state for comparison, with arrays as bytes."""
    entries = state.state_dict().values()
    return [entry.tobytes() if isinstance(entry, np.ndarray) else entry for entry in entries]


def bucket(buffer: torch.Tensor, on_device: bool = False) -> "Bucket":
    """Return a bucket that works on its buffer in place."""
    del on_device  # where the frames are, in any case
    return Bucket(buffer)


class Encoded(Protocol):
    """A parameter that is encoded."""

    codec: Codec
    state: Any


class Bucket:
    """The gradients of one bucket, until their average replaces them; encoded by the core.

    ``buffer`` is the caller's: floating-point numbers of shape (entries,), or a sparse tensor.
    ``future`` is resolved with it, or for a sparse one with another sparse tensor.

    Positions count entries of the flat buffer. Frames are in tensors of bytes. Methods with a loss
    scale divide values by it when reading, and multiply when writing.
    """

    __slots__ = ("_host", "_result", "buffer", "dtype", "frames_on", "future", "itemsize", "nbytes")

    def __init__(
        self, buffer: torch.Tensor, future: "torch.futures.Future[torch.Tensor] | None" = None
    ) -> None:
        self.buffer = buffer
        self.dtype = buffer.dtype  # of the gradients
        self.itemsize = buffer.element_size()  # bytes of an entry
        self.nbytes = buffer.numel() * self.itemsize  # of all entries
        self.frames_on = _HOST  # where frames are written, gathered and read
        self.future: torch.futures.Future[torch.Tensor] = future or torch.futures.Future()
        self._result = buffer
        self._host: torch.Tensor | None = buffer  # what the core reads and writes, if it is there

    @property
    def values(self) -> torch.Tensor:
        """The flat tensor with the gradients, and later their averages, for torch's operations."""
        return self.buffer

    def _on_host(self) -> torch.Tensor:
        """Return the gradients on the host, for the core."""
        assert self._host is not None  # in place
        return self._host

    def _read(self, frames: torch.Tensor) -> NDArray[np.uint8]:
        """Return bytes from where frames are, on the host."""
        array: NDArray[np.uint8] = frames.numpy()
        return array

    def _upload(self, values: NDArray[Any]) -> torch.Tensor:
        """Return numbers of the host where frames are."""
        return torch.from_numpy(values)

    # Both threads -----------------------------------------------------------------------------

    def used(self, *tensors: torch.Tensor) -> Any:
        """Return a mark (an event) after the work that this thread has queued on the device.

        That work uses these tensors, which belong to the other thread: their memory must not be
        reused before the mark. None where threads wait for what reads frames on the host.
        """

    def follow(self, mark: Any) -> None:
        """Order further device work of this thread after a mark of the other thread."""

    # The sending thread -----------------------------------------------------------------------

    def sending(self) -> AbstractContextManager[None]:
        """Run this block on the stream of the sending thread.

        Its work is ordered after everything queued on the caller's stream before the bucket was
        made.
        """
        return _BLOCK

    def wait(self) -> None:
        """Wait for the work that was queued on the caller's stream before the bucket was made."""

    def encode(
        self,
        codecs: Sequence[Codec],
        states: Sequence[State],
        ends: Sequence[int],
        limits: Sequence[int],
        positions: Sequence[NDArray[np.uint32] | None],
        out: torch.Tensor,
        scale: float,
    ) -> tuple[Table, Exception | None]:
        """Encode parameters, and write their frames to `out` one after another.

        `ends` are the start and the stop of each parameter, alternating. A frame that exceeds its
        limit in bytes is trimmed. Given positions (uint32) are sent; with None, the codec selects.

        Returns a row for each parameter that was encoded, and the error of the next one, such as
        `gradwire.NonFiniteError`, or None: the states of that parameter and the following ones are
        unchanged.
        """
        return _native.encode_bucket(
            array_of(self._on_host() if self._host is None else self._host),
            scale,
            list(map(_CORE, codecs)),
            states,
            ends,
            limits,
            positions,
            out.numpy(),
            self.dtype == torch.bfloat16,
        )

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
        """Cut frames by range, and return for each owner the frames of its ranges, concatenated.

        The frames are concatenated, as written by `encode` with these codecs; `sizes` and `counts`
        are their bytes and entries. `bounds` are the starts and stops of the ranges of each frame,
        and `owners` the number of the owner of each range, the rank that sums it.
        """
        del codecs, counts
        data = self._read(frames[: sum(sizes)])
        parts = _native.split_bucket(data, sizes, bounds, owners, ranks)
        return list(map(self._upload, parts))

    def gradient(self, start: int, stop: int, scale: float) -> NDArray[Any]:
        """Return a gradient on the host, for parts and schedules written in Python.

        Valid until the next call in the same thread.
        """
        gradient = self._on_host()[start:stop]
        if scale == 1.0 and gradient.dtype != torch.bfloat16:
            return gradient.numpy()
        # Converted to float32 first: dividing in float16 would underflow small gradients.
        source = _float32(gradient.numel()).copy_(gradient)
        return (source if scale == 1.0 else source.div_(scale)).numpy()

    def fills(self, parameters: Sequence[Encoded]) -> bool:
        """Tell whether the device fills a slot with these by itself: `fill` is for that only."""
        del parameters
        return False

    def fill(self, slot: torch.Tensor, order: "SlotOrder") -> Any:
        """Let the device fill a slot by itself: frames, uncompressed entries, and the front.

        The front is the header and a record of each frame, or the error of the first parameter that
        cannot be sent. Returns a `gradwire.torch.backends.cuda.slots.FilledSlot`.
        """
        raise NotImplementedError

    def write_header(self, slot: torch.Tensor, front: NDArray[np.uint8]) -> None:
        """Write bytes of the host to the start of a slot."""
        slot.numpy()[: front.size] = front

    def values_of(
        self, frames: torch.Tensor, sizes: Sequence[int], numels: Sequence[int], positions: bool
    ) -> tuple[torch.Tensor, NDArray[np.uint32]]:
        """Return the values of this rank's own frames, float32, on the device of frames.

        The frames are concatenated; `sizes` are their bytes. If they have all entries, `numels` are
        the lengths of their parameters; otherwise it is empty. Positions are returned only if asked
        for by `positions`.
        """
        del numels
        data = self._read(frames[: sum(sizes)])
        values, places = _native.read_bucket(data, sizes, positions)
        return self._upload(values), places

    def pack(self, runs: Sequence[tuple[int, int]], out: torch.Tensor) -> bool:
        """Copy runs of entries to the device of frames; tell whether all of them are finite."""
        values, at = self.values, 0
        for start, stop in runs:
            out[at : at + stop - start] = values[start:stop]
            at += stop - start
        return finite(out)

    def not_finite(self, start: int, stop: int, width: int) -> tuple[int, int]:
        """Count non-finite entries, of ``width`` numbers each; return also the first position."""
        bad = ~torch.isfinite(self._on_host()[start:stop])
        if width > 1:
            bad = bad.view(-1, width).any(1)
        count = int(bad.sum())
        return count, int(bad.nonzero()[0]) if count else 0

    def sparse(self) -> torch.Tensor:
        """Return a sparse bucket on the device from which collectives read it."""
        return self._on_host()

    # The receiving thread ---------------------------------------------------------------------

    def receiving(self) -> AbstractContextManager[None]:
        """Run this block on the stream of the receiving thread."""
        return _BLOCK

    def read_headers(self, slots: torch.Tensor, nbytes: int) -> NDArray[np.uint8]:
        """Return the first bytes of each slot on the host, read-only, one row per slot."""
        return self._read(slots[:, :nbytes])

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
        """Decode the frames of all ranks in their order, and write the averages.

        `starts` are the offsets of each rank's frames, and `sizes` the bytes of each. Parameters
        that are `unused` are set to zero instead. With `senders`, an entry is divided by the number
        of ranks that sent it, not by the number of all ranks; frames of sums over ``ranks`` ranks
        by that number. Returns the nanoseconds for each parameter.
        """
        return _native.average_bucket(
            self._read(frames),
            starts,
            sizes,
            ends,
            unused,
            array_of(self._on_host() if self._host is None else self._host),
            scale,
            senders,
            self.dtype == torch.bfloat16,
            ranks=ranks,
        )

    def merge(
        self,
        received: torch.Tensor,
        bounds: Sequence[int],
        codecs: Sequence[Codec],
        states: Sequence[State],
        ends: Sequence[int],
        unused: Sequence[bool],
    ) -> tuple[torch.Tensor, Exception | None, int]:
        """Sum the frames that all ranks sent of this owner's ranges, and encode the sums.

        For each rank in order, `bounds` are the starts and stops in `received` of the frames of all
        ranges, as cut by `split`; `ends` are those of the ranges in their parameters. The rest of
        the sums is added to the states, which were encoded in this step and must be undone after an
        error. Ranges that are `unused` are skipped. Returns the concatenated frames on the device
        of frames, the error of a range or None, and the number of that range.
        """
        data = self._read(received)
        frames, merged, error = _native.merge_bucket(
            [data[start:stop] for start, stop in zip(bounds[::2], bounds[1::2], strict=True)],
            [0] * (len(bounds) // 2),
            [codec._codec for codec in codecs],
            states,
            ends,
            unused,
        )
        return self._upload(frames), error, merged.size // 3

    def frame_sizes(
        self, data: torch.Tensor, bounds: Sequence[int], counts: Sequence[int]
    ) -> list[list[int] | None]:
        """Return the bytes of each of the concatenated frames of each message.

        `bounds` are the start and the stop of each message, alternating. None for a message whose
        length differs from the sum of the frames' lengths in their headers.
        """
        messages = zip(bounds[::2], bounds[1::2], counts, strict=True)
        array = data.numpy()
        return [_sizes_in(array[start:stop], count) for start, stop, count in messages]

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
        """Decode frames of sums over ``ranks`` ranks, and write the averages.

        As `average`, but each message has the frames of different ranges. Returns the nanoseconds
        of each message's ranges.
        """
        messages = zip(starts, sizes, ends, unused, strict=True)
        return [
            self.average(frames, [start], [lengths], pairs, skipped, False, scale, ranks)
            for start, lengths, pairs, skipped in messages
        ]

    def unpack(self, runs: Sequence[tuple[int, int]], values: torch.Tensor) -> None:
        """Write values to the runs that `pack` read."""
        if runs:
            parts = torch.split(self._there(values), [stop - start for start, stop in runs])
            torch._foreach_copy_([self.values[start:stop] for start, stop in runs], parts)

    def _there(self, values: torch.Tensor) -> torch.Tensor:
        """Return exchanged values on the device of `values`."""
        return values

    def clear(self, start: int, stop: int) -> None:
        """Write zeros."""
        self.values[start:stop].zero_()

    def scatter(self, places: Sequence[NDArray[np.int64]], values: torch.Tensor) -> None:
        """Write values to distinct positions."""
        self.values[torch.from_numpy(np.concatenate(places))] = values.to(self.dtype)

    def finite(self) -> bool:
        """Tell whether every entry is finite."""
        return finite(self.values, self._holds)

    def _holds(self, flag: torch.Tensor) -> bool:
        return bool(flag)

    def checksum(self) -> int | torch.Tensor:
        """Return the sum of all words of eight bytes, modulo 2**64, and of the bytes after them."""
        host = self._on_host() if self._host is None else self._host
        values = host.detach().view(torch.uint8).numpy()
        words, rest = np.split(values, [values.size // 8 * 8])
        return int(np.add.reduce(words.view(np.uint64))) + int(rest.sum())

    def store(self, result: torch.Tensor | None = None) -> None:
        """Finish writing: copy the written values, or a sparse result, to the buffer's device."""
        if result is not None:
            self._result = result

    def resolve(self, *, poisoned: bool) -> None:
        """Resolve the future, in the order of the device's work. The last call on a bucket.

        With `poisoned`, the result is first made infinite: visibly unusable, also for a loss
        scaler.
        """
        self.future.set_result(_poison(self._result) if poisoned else self._result)


@dataclass(frozen=True, slots=True)
class SlotPlaces:
    """Sizes and offsets in the slots of one bucket, in bytes; the same on every rank."""

    limits: tuple[int, ...]  # of each frame
    records_at: int
    dense_at: int
    dense_end: int
    frames_at: int
    nbytes: int
    front: int  # before the dense parameters, and at least those of a message: errors are there


@dataclass(slots=True, eq=False)
class SlotFacts:
    """Names for errors of a bucket, and its uncompressed parameters; equal in every step."""

    names: list[str]  # of the parameters that are encoded, then of the others
    dense: list[tuple[int, int]]  # of each of those, how many numbers there are, and in an entry
    refusal: str  # what precedes a name where nothing else is known
    room: int  # bytes of a text
    rank: int
    there: Any = None  # what a backend keeps of this


@dataclass(frozen=True, slots=True, eq=False)
class SlotOrder:
    """The contents requested of a slot; the first three are arguments of `Bucket.encode`."""

    codecs: Sequence[Codec]
    states: Sequence[Any]
    ends: Sequence[int]
    runs: Sequence[tuple[int, int]]  # of dense entries
    places: SlotPlaces
    header: tuple[int, ...]  # words of eight bytes
    total: torch.Tensor | None  # of a checksum, for its place in the header
    facts: SlotFacts
    scale: float
    tells_zero: bool  # whether records say that a gradient was zero


@dataclass(frozen=True, slots=True, eq=False)
class SlotAverages:
    """The result of `cuda.slots.FilledSlot.average`."""

    headers: NDArray[np.uint8]  # as `Bucket.read_headers` returns them
    nanoseconds: NDArray[np.int64] | None  # as `Bucket.average`; None: nothing was written
    finite: bool  # whether all entries are known to be finite
    seconds: float  # of the device


def finite(values: torch.Tensor, holds: Callable[[torch.Tensor], bool] = bool) -> bool:
    """Tell whether every entry is finite, in one read and without temporary memory.

    `holds` reads a flag on the device of the values.
    """
    # The sum of finite values may overflow; then check every entry.
    total = values.sum(dtype=torch.promote_types(values.dtype, torch.float32))
    return holds(torch.isfinite(total)) or holds(torch.isfinite(values).all())


def _sizes_in(message: NDArray[np.uint8], count: int) -> list[int] | None:
    """Return the bytes of ``count`` frames by their headers; None if these are inconsistent."""
    sizes, at = [], 0
    for _ in range(count):
        if at + _HEADER_NBYTES > message.size:
            return None
        sections = _SECTIONS.unpack_from(message.data, at + _SECTIONS_AT)
        sizes.append(_HEADER_NBYTES + sum(sections))
        at += sizes[-1]
    return sizes if at == message.size else None


def _float32(numel: int) -> torch.Tensor:
    """Return float32 scratch memory, which the next call in this thread reuses."""
    scratch: torch.Tensor | None = getattr(_scratch, "kept", None)
    if scratch is None or scratch.numel() < numel:
        scratch = _scratch.kept = torch.empty(numel, dtype=torch.float32, device="cpu")
    return scratch[:numel]


def _poison(result: torch.Tensor) -> torch.Tensor:
    """Return the bucket made infinite: in place, or a sparse tensor with infinite entries."""
    if result.layout == torch.strided:
        return result.fill_(torch.inf)
    dims = result.sparse_dim()
    at = torch.zeros((dims, 1), dtype=torch.int64, device=result.device)
    shape = (1, *result.shape[dims:])
    values = torch.full(shape, torch.inf, dtype=result.dtype, device=result.device)
    return torch.sparse_coo_tensor(at, values, result.shape, is_coalesced=True)
