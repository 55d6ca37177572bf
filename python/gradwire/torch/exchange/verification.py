"""Compares buckets with the core at its scalar level, and handles differences.

All backends produce the same bytes. So a difference is a fault: of a kernel, a compiler, a driver,
or of memory. A frame's checksum does not reveal it, because it is computed from the wrong bytes.
The ranks also compare the bits of the bucket's parameters, which a program may have changed on one.

Results of a device's kernels are compared with the core on the host, results of the core with its
scalar level. The bucket does not change: copies of its states are compared.
"""

import copy
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray

from gradwire import _native
from gradwire._codec import Codec
from gradwire.extension import IndexCoding, Quantizer
from gradwire.torch.backends import Bucket, LeaderEncoding, Table, cpu
from gradwire.torch.backends.cpu import held, same_bits
from gradwire.torch.backends.host import checksum
from gradwire.torch.engine.bucket_contents import BucketContents
from gradwire.torch.engine.sharding import local
from gradwire.torch.engine.step import BucketTask, InFlightBucket
from gradwire.torch.errors import ExchangeError, GradientError, warn
from gradwire.torch.exchange import wire
from gradwire.torch.transport import Channel

T = TypeVar("T")

_SCALAR = "scalar"
_REPORT = "Please report this, with what `gradwire info` prints"


class Verification:
    """The policy for differences, and for all buckets after one; the same on all ranks.

    A difference is an ExchangeError; or with ``fallback`` it is corrected on its rank, and all
    ranks continue without the faulty kernels.
    """

    def __init__(self, *, fallback: bool) -> None:
        self._fallback = fallback
        self._by_core = False  # kernels of devices are not used any more
        self._scalar = False  # nor are other levels of the core

    def run(self, act: Callable[..., T], *args: Any) -> T:
        """Run a thread's work on a bucket."""
        return at_scalar_level(act, *args) if self._scalar else act(*args)

    def begin(self, task: BucketTask) -> None:
        """Choose the object that encodes and decodes a bucket from now on."""
        if self._by_core:
            task.bucket.kernels = False

    def compared(self, task: BucketTask, rank: int) -> "VerifiedBucket | None":
        """Return what encodes and decodes a bucket twice, if it is one to be compared.

        Quantizers and index codings in Python may not be called twice.
        """
        if task.compared is None or self._scalar:
            return None
        codecs = [parameter.codec for parameter in task.layout.compressed]
        if any(isinstance(each.quantize, Quantizer) for each in codecs):
            return None
        if any(isinstance(each.indices, IndexCoding) for each in codecs):
            return None
        return VerifiedBucket(task, rank, fallback=self._fallback)

    def agree(self, channel: Channel, flight: InFlightBucket, act: Callable[[], object]) -> None:
        """Receive a bucket that was compared, and share the outcome with all ranks. A collective.

        If it failed on one, or if parameters differ, all raise the same error. No other thread uses
        the channel.
        """
        task, error, parameters = flight.task, None, 0
        assert task.compared is not None
        task.compared.twins.clear()
        try:
            act()
            parameters = _checksum_of_parameters(task.layout)
        except BaseException as raised:  # of any kind: the other ranks wait for the message
            error = raised
        told = error
        if not isinstance(error, ExchangeError | GradientError):
            told = wire.attributed(error, channel.rank, "decode")
        digest, sequence = task.layout.digest, flight.sequence
        message = np.zeros(wire.MESSAGE_NBYTES, np.uint8)
        found = task.compared.difference.encode()[: wire.MESSAGE_NBYTES - wire.HEADER_NBYTES]
        message[wire.HEADER_NBYTES :][: len(found)] = np.frombuffer(found, np.uint8)
        total = wire.Checksum(total=parameters)
        wire.write_verdict(message, digest, sequence, told, len(found), total)
        mine = torch.from_numpy(message)
        every = mine.new_empty((channel.size, wire.MESSAGE_NBYTES))
        with wire.explained(f"bucket {sequence}, which was compared, failed on another rank"):
            channel.all_gather(every.view(-1), mine).wait()
        verdicts = wire.read_verdicts(every.numpy(), digest, sequence)
        wire.raise_first(verdicts)
        if error is not None:
            raise error
        _raise_if_parameters_differ(task, verdicts)
        for row, verdict in zip(every.numpy(), verdicts, strict=True):
            if verdict.nbytes:
                text = bytes(row[wire.HEADER_NBYTES :][: verdict.nbytes]).decode(errors="ignore")
                self._fall_back(text, kernels=task.bucket.kernels)
                break

    def _fall_back(self, text: str, *, kernels: bool) -> None:
        way = "by the core on the host" if kernels else "at the core's scalar level"
        if kernels:
            self._by_core = True
        else:
            self._scalar = True
        warn(f"{text}. From now on all ranks encode and decode {way}", RuntimeWarning)


def at_scalar_level(act: Callable[..., T], *args: Any) -> T:
    """Run a function in this thread with the core at its scalar level."""
    result: T = _native.at_level(_SCALAR, act, *args)
    return result


class VerifiedBucket:
    """The methods of a `Bucket` that encode and decode, each done twice and compared."""

    def __init__(self, task: BucketTask, rank: int, *, fallback: bool) -> None:
        assert task.compared is not None
        self._task, self._bucket, self._compared = task, task.bucket, task.compared
        self._rank, self._fallback = rank, fallback

    def encode(
        self,
        codecs: Sequence[Codec],
        states: Sequence[Any],
        ends: Sequence[int],
        limits: Sequence[int],
        positions: Sequence[NDArray[np.uint32] | None],
        out: torch.Tensor,
        scale: float,
        *,
        deferred: bool = False,
    ) -> tuple[Table, Exception | None]:
        """Encode parameters, as `Bucket.encode`."""

        def by(
            bucket: Bucket, states: Sequence[Any], out: torch.Tensor
        ) -> tuple[Table, Exception | None]:
            return bucket.encode(
                codecs, states, ends, limits, positions, out, scale, deferred=deferred
            )

        twins = [copy.deepcopy(state).on_host() for state in states]
        room = torch.empty(sum(limits), dtype=torch.uint8, device="cpu")
        right, refused = self._by_reference(by, self._bucket.core(), twins, room)
        table, error = by(self._bucket, states, out)
        if isinstance(error, MemoryError):
            return table, error
        rows, expected = (each.reshape(-1, 6)[:, :5] for each in (table, right))
        at = _first_other(rows, expected, out, room)
        what = "frame"
        if at is None and _told(error) != _told(refused):
            at, what = len(rows), "verdict on the gradient"
        if at is None and not deferred:
            done = zip(states[: len(rows)], twins, strict=False)
            at = next((i for i, pair in enumerate(done) if held(pair[0]) != held(pair[1])), None)
            what = "state"
        if at is None:
            self._compared.twins.update((twin.name, twin) for twin in twins)
            return table, error
        for twin in twins[: len(expected)]:
            twin.rollback()
        for state, twin in zip(states[: len(rows)], twins, strict=False):
            if deferred:
                state.rollback()
            else:
                state.load_state_dict(twin.state_dict())
        self._differs(what, ends[2 * at])
        return self._by_fallback(by, self._bucket, states, out)

    def encode_leader(
        self, codec: Codec, state: Any, start: int, stop: int, limit: int, scale: float
    ) -> LeaderEncoding | None:
        """Encode one parameter whose positions the other ranks will use."""

        def by(bucket: Bucket, state: Any) -> LeaderEncoding | None:
            return bucket.encode_leader(codec, state, start, stop, limit, scale)

        twin = copy.deepcopy(state).on_host()
        right = self._by_reference(by, self._bucket.core(), twin)
        led = by(self._bucket, state)
        if _parts(led) == _parts(right) and held(state) == held(twin):
            return led
        twin.rollback()
        state.load_state_dict(twin.state_dict())
        self._differs("frame", start)
        return self._by_fallback(by, self._bucket, state)

    def values_of(
        self, frames: torch.Tensor, sizes: Sequence[int], numels: Sequence[int], positions: bool
    ) -> tuple[torch.Tensor, NDArray[np.uint32]]:
        """Return the values of this rank's own frames, as `Bucket.values_of`."""

        def by(bucket: Bucket, frames: torch.Tensor) -> tuple[torch.Tensor, NDArray[np.uint32]]:
            return bucket.values_of(frames, sizes, numels, positions)

        right, places = self._by_reference(by, _empty(), frames[: sum(sizes)].cpu())
        values, own = by(self._bucket, frames)
        if same_bits(values.cpu(), right) and np.array_equal(own, places):
            return values, own
        self._differs("values in the frame")
        return self._by_fallback(by, self._bucket, frames)

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
        """Decode the frames of all ranks, and write the averages, as `Bucket.average`."""

        def by(bucket: Bucket, frames: torch.Tensor) -> NDArray[np.int64]:
            return bucket.average(frames, starts, sizes, ends, unused, senders, scale)

        return self._averaged(by, frames, ends)

    def _averaged(
        self, by: Callable[[Bucket, torch.Tensor], T], frames: torch.Tensor, ends: Sequence[int]
    ) -> T:
        buffer = self._bucket.buffer
        right = cpu.bucket(torch.empty(buffer.shape, dtype=buffer.dtype, device="cpu"))
        self._by_reference(by, right, frames.cpu())
        spent = by(self._bucket, frames)
        own = self._bucket.values.cpu()
        for start, stop in zip(ends[::2], ends[1::2], strict=True):
            if not same_bits(own[start:stop], right.buffer[start:stop]):
                self._differs("average", start)
                return self._by_fallback(by, self._bucket, frames)
        return spent

    # What owners of ranges do -----------------------------------------------------------------

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
        """Cut frames by owner, as `Bucket.split`."""

        def by(bucket: Bucket, frames: torch.Tensor) -> list[torch.Tensor]:
            return bucket.split(codecs, frames, sizes, counts, bounds, owners, ranks)

        right = self._by_reference(by, _empty(), frames[: sum(sizes)].cpu())
        parts = by(self._bucket, frames)
        if all(same_bits(part.cpu(), other) for part, other in zip(parts, right, strict=True)):
            return parts
        self._differs("cut of the frame")
        return self._by_fallback(by, self._bucket, frames)

    def merge(
        self,
        received: torch.Tensor,
        bounds: Sequence[int],
        codecs: Sequence[Codec],
        states: Sequence[Any],
        ends: Sequence[int],
        unused: Sequence[bool],
    ) -> tuple[torch.Tensor, Exception | None, int]:
        """Merge the ranges that this rank owns, as `Bucket.merge`.

        The result of the scalar level goes to the states themselves; that of a comparison with
        kernels to copies, which replace the states after a difference.
        """

        def by(
            bucket: Bucket, received: torch.Tensor, states: Sequence[Any]
        ) -> tuple[torch.Tensor, Exception | None, int]:
            return bucket.merge(received, bounds, codecs, states, ends, unused)

        if not self._compared.twins:  # which have encoded what is merged
            return self._by_fallback(by, self._bucket, received, states)
        twins = [self._compared.twins[state.name] for state in states]
        for twin, skipped in zip(twins, unused, strict=True):
            if skipped:
                twin.rollback()
        kernels = self._bucket.kernels
        exact, tried = (twins, states) if kernels else (states, twins)
        right, refused, at = self._by_reference(by, _empty(), received.cpu(), exact)
        frames, error, where = by(self._bucket, received, tried)
        same = same_bits(frames.cpu(), right) and (_told(error), where) == (_told(refused), at)
        if same and (error is not None or list(map(held, tried)) == list(map(held, exact))):
            return frames, error, where
        for state, twin in zip(states, twins, strict=True) if kernels else ():
            state.become(twin)
        self._differs("frame of the sums")
        if right.device != received.device:
            right = self._bucket.upload(right)
        return right, refused, at

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
        """Decode frames of sums, and write the averages, as `Bucket.average_sums`."""

        def by(bucket: Bucket, frames: torch.Tensor) -> list[NDArray[np.int64]]:
            return bucket.average_sums(frames, starts, sizes, ends, unused, scale, ranks)

        return self._averaged(by, frames, [end for pairs in ends for end in pairs])

    # Twice ------------------------------------------------------------------------------------

    def _by_reference(self, act: Callable[..., T], *args: Any) -> T:
        """Run an operation with the reference implementation."""
        return act(*args) if self._bucket.kernels else at_scalar_level(act, *args)

    def _by_fallback(self, act: Callable[..., T], *args: Any) -> T:
        """Repeat an operation without the faulty implementation."""
        if not self._bucket.kernels:
            return at_scalar_level(act, *args)
        self._bucket.kernels = False
        try:
            return act(*args)
        finally:
            self._bucket.kernels = True

    def _differs(self, what: str, start: int = 0) -> None:
        """Record a difference in the parameter with this entry, or raise it."""
        task = self._task
        piece = next((each for each in task.layout.pieces if start < each.stop), None)
        assert piece is not None
        if self._bucket.kernels:
            by, other = f"by kernels on {task.bucket.buffer.device}", "the core"
        else:
            by, other = f"at SIMD level {_native.simd_level()}", "the core's scalar level"
        text = (
            f"rank {self._rank} has another {what} of {piece.parameter.name!r} than {other}: step "
            f"{task.step.number}, bucket {self._compared.number}, {task.layout.dtype}, {by}, "
            f"{piece.parameter.codec!r}. {_REPORT}"
        )
        if not self._fallback:
            raise ExchangeError(text, self._rank)
        self._compared.difference = self._compared.difference or text


def _empty() -> Bucket:
    """Return a bucket of the core without gradients, to encode and decode with."""
    return cpu.bucket(torch.empty(0, device="cpu"))


def _checksum_of_parameters(layout: BucketContents) -> int:
    """Return a checksum of a bucket's parameters, which must be equal on all replicas."""
    parameters = [piece.parameter for piece in (*layout.pieces, *layout.dense)]
    tensors = (local(each.tensor.detach()).reshape(-1) for each in parameters)
    return sum(int(checksum(each)) for each in tensors) & wire.ALL_BITS


def _raise_if_parameters_differ(task: BucketTask, verdicts: Sequence[wire.Verdict]) -> None:
    totals = [each.checksum.total for each in verdicts]
    rank = next((i for i, total in enumerate(totals) if total != totals[0]), None)
    if rank is not None:
        first, *others = task.layout.names
        raise ExchangeError(
            f"ranks 0 and {rank} have different parameters at step {task.step.number}, in the "
            f"bucket of {first!r} and {len(others)} others: the program has changed them on some "
            "ranks only, an optimizer differs, or memory has changed bytes. Load the same "
            "parameters on all ranks, or restart from a checkpoint",
            rank,
        )


def _first_other(
    rows: Table, expected: Table, out: torch.Tensor, right: torch.Tensor
) -> int | None:
    """Return the first parameter whose row or frame differs; None if there is none."""
    at, written = 0, out[: int(expected[:, 0].sum())].cpu()
    for i, (row, other) in enumerate(zip(rows, expected, strict=False)):
        end = at + int(other[0])
        if not np.array_equal(row, other) or not torch.equal(written[at:end], right[at:end]):
            return i
        at = end
    return None if len(rows) == len(expected) else min(len(rows), len(expected))


def _parts(led: LeaderEncoding | None) -> list[object]:
    if led is None:
        return []
    return [led.positions, led.wanted, led.values.cpu().numpy().tobytes(), *led.table[:5].tolist()]


def _told(error: Exception | None) -> str:
    return f"{type(error).__name__}: {error}"
