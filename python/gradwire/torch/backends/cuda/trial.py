"""The trial of a device: checks at first use that its kernels produce the bytes of the core.

The checksum of a frame is computed where its bytes are, so no receiver notices a kernel that is
wrong: models would train worse, or replicas drift apart. So everything that kernels support is
encoded and decoded once on the device and once by the core, and compared bit for bit: frames, also
trimmed ones, cut by owner and merged, averages, and states, also after a rollback and where
memories are written late.
"""

import os
import queue
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from gradwire.errors import ExtensionError
from gradwire.exchange.owners import owners_for
from gradwire.frame import Frame
from gradwire.torch.backends import cpu
from gradwire.torch.backends.cpu import held, same_bits
from gradwire.torch.backends.cuda import encoding, merging, splitting
from gradwire.torch.backends.cuda.cases import Case, cases
from gradwire.torch.backends.cuda.states import init_state, rollback
from gradwire.torch.backends.host import is_lost, lost, staging

PATIENCE = 10.0
"""Seconds without an answer after which a kernel is taken to hang. All are loaded before."""
EQUAL = "equal"
_SCALE = 0.5  # of what is decoded
_INTO = {
    encoding.PLACE: "placed",
    encoding.ADD: "added",
    encoding.RANKS: "averaged",
    encoding.SENDERS: "averaged over senders",
}


def is_on() -> bool:
    """Tell whether devices are tested at first use."""
    return os.environ.get("GRADWIRE_CUDA_TRIAL") != "0"


@dataclass(frozen=True, slots=True)
class TrialRow:
    """The results of one codec with tensors of one dtype."""

    codec: str  #: or the part of `topk` or a preset that is another one
    steps: int  #: the last one that was compared, or the one with the difference
    dtype: str
    outcome: str  #: ``"equal"``, or what differs first


@dataclass(frozen=True, slots=True, repr=False)
class Trial:
    """The results of a device's kernels, compared with the core. Prints as a table."""

    device: str
    rows: tuple[TrialRow, ...]

    @property
    def failure(self) -> str | None:
        """The first difference, with codec, step and dtype; None if there is none."""
        for row in self.rows:
            if row.outcome != EQUAL:
                return f"{row.outcome} for {row.codec}, step {row.steps}, {row.dtype}"
        return None

    def __repr__(self) -> str:
        wide = max(len(row.codec) for row in self.rows)
        lines = [f"{'codec on ' + self.device:<{wide}} steps dtype    outcome"]
        lines += [
            f"{row.codec:<{wide}} {row.steps:>5} {row.dtype:<8} {row.outcome}" for row in self.rows
        ]
        return "\n".join(lines)


def run(device: torch.device, *, whole: bool = False) -> Trial:
    """Test a device, on its own stream and thread; raise an ExtensionError if it hangs.

    Raises a DeviceError if the device is lost. Stops at the first difference, unless `whole` is
    True.
    """
    if device.type == "cuda":
        torch.cuda.synchronize(device)  # however long what it was given before may take
    begun: queue.SimpleQueue[str | None] = queue.SimpleQueue()
    work = _Work(device, begun.put, whole=whole)
    thread = threading.Thread(target=work.run, name="gradwire-trial", daemon=True)
    thread.start()
    now: str | None = "the first call"
    while now is not None:
        last = now
        try:
            now = begun.get(timeout=PATIENCE)
        except queue.Empty:
            raise ExtensionError(
                f"{device} hangs: the trial of its kernels had no answer for {PATIENCE:g} seconds "
                f"({last}). Such a kernel cannot be cleared within this process, which has to end; "
                "with GRADWIRE_CUDA_LIBRARY=none the host encodes instead. Please report this with "
                "what `gradwire info` prints"
            ) from None
    thread.join()
    found = Trial(str(device), tuple(work.found.values()))
    if found.failure is not None and is_lost(device):
        raise lost(
            device,
            f"after the trial of its kernels: {found.failure}; with GRADWIRE_CUDA_LIBRARY=none "
            "the host encodes instead",
        )
    return found


class _Difference(Exception):
    """Ends a trial at a difference."""


class _Work:
    """The work of a trial, and its results so far by codec and dtype.

    `begin` is called with the next operation on the device, and with None at the end.
    """

    def __init__(
        self, device: torch.device, begin: Callable[[str | None], object], *, whole: bool
    ) -> None:
        self.found: dict[tuple[str, str], TrialRow] = {}
        self._device, self._begin, self._whole = device, begin, whole
        self._dtype, self._step = torch.float32, 0

    def run(self) -> None:
        """Run all tests, or those up to the first difference."""
        seeded = self._device in encoding._seeded
        try:
            with staging(self._device).writing():
                every = cases()
                for self._dtype, steps in ((torch.float32, 3), (torch.bfloat16, 1)):
                    self._train(_Bucket(every, self._device), steps)
                    largest = max(every, key=lambda each: each.numel)
                    alone = _Bucket([largest], self._device)  # whose frame is not gathered
                    self._encode(alone, 0)
                    self._encode(alone, 1, given=np.arange(0, largest.numel, 99, dtype=np.uint32))
        except _Difference:
            pass
        except Exception as error:  # whatever it is, the kernels are not to be used
            said = f"{type(error).__name__}: {error}".partition("\n")[0]
            self.found["all", said] = self._row("all codecs", said)
        finally:
            if not seeded:  # that is for what the program decodes
                encoding._seeded.discard(self._device)
            self._begin(None)

    def _row(self, codec: str, outcome: str) -> TrialRow:
        return TrialRow(codec, self._step, str(self._dtype).removeprefix("torch."), outcome)

    def _compare(self, what: str, bucket: "_Bucket", equal: Sequence[bool]) -> None:
        """Record for each codec whether results are equal, and its first difference."""
        for case, each in zip(bucket.cases, equal, strict=True):
            row = self._row(case.title, EQUAL if each else f"another {what}")
            key = row.codec, row.dtype
            before = self.found.setdefault(key, row)
            if before.outcome == EQUAL and (not each or row.steps > before.steps):
                self.found[key] = row
            if not each and not self._whole:
                raise _Difference

    def _train(self, bucket: "_Bucket", steps: int) -> None:
        made = [self._encode(bucket, step) for step in range(min(steps, 2))]
        if len(made) == 2:
            self._decode(bucket, made)
            self._begin("a rollback")
            rollback(bucket.there)
            cpu.rollback(bucket.here)
            self._encode(bucket, 1)
            limits = [len(frame) - len(frame) // 3 for frame in made[1]]
            made.append(self._encode(bucket, 2, limits))
        self._own(bucket, made)
        self._compare_states(bucket)

    def _encode(
        self,
        bucket: "_Bucket",
        step: int,
        limits: Sequence[int] = (),
        *,
        given: NDArray[np.uint32] | None = None,
    ) -> list[bytes]:
        """Encode on the device and in the core, compare, and return the frames."""
        self._step = step + 1
        self._begin(f"an encode of {len(bucket.cases)} tensors, step {self._step}, {self._dtype}")
        codecs, ends = [case.codec for case in bucket.cases], bucket.ends
        most = [case.codec.max_encoded_len(case.numel) for case in bucket.cases]
        for i, (case, limit) in enumerate(zip(bucket.cases, limits, strict=False)):
            if case.codec.sparsify.selects and case.numel > 1:
                most[i] = min(most[i], max(limit, cpu._LEAST))
        flat = _values(ends[-1], step).to(self._dtype)
        out = torch.empty(sum(most), dtype=torch.uint8, device=self._device)
        expected = torch.empty(sum(most), dtype=torch.uint8, device="cpu")
        there, at = flat.to(self._device), [given] * len(most)
        rows = encoding.encode(codecs, bucket.there, ends, most, there, 1.0, out, at)
        table, error = cpu.bucket(flat).encode(codecs, bucket.here, ends, most, at, expected, 1.0)
        if error is not None:
            raise error
        table = table.reshape(-1, 6)[:, :5]
        ours, theirs = _cut(out.cpu(), rows[:, 0]), _cut(expected, table[:, 0])
        alike = list(map(np.array_equal, rows, table))
        same = [ours[i] == theirs[i] and alike[i] for i in range(len(ours))]
        self._compare("frame", bucket, same + [False] * (len(theirs) - len(ours)))
        return theirs

    def _decode(self, bucket: "_Bucket", made: Sequence[list[bytes]]) -> None:
        """Test all ways to decode the frames of two ranks, and a damaged frame."""
        ends, spans = bucket.ends, bucket.spans
        nbytes = np.array([[len(frame) for frame in frames] for frames in made])
        starts = np.cumsum(nbytes).reshape(nbytes.shape) - nbytes
        data = torch.frombuffer(bytearray(b"".join(map(b"".join, made))), dtype=torch.uint8)
        there, used = data.to(self._device), [False] * len(spans)

        def decoded(into: int, ranks: int, out: torch.Tensor, right: torch.Tensor) -> bool:
            self._begin(f"a decode of {len(spans)} tensors to {out.dtype}, {_INTO[into]}")
            at, lens = (each[:ranks].T.ravel().tolist() for each in (starts, nbytes))
            done = encoding.decode(out, there, ends, at, lens, ranks, into, _SCALE)
            ours = out.cpu()
            alike = [done and same_bits(ours[a:b], right[a:b]) for a, b in spans]
            self._compare(f"result of frames that are {_INTO[into]} in {out.dtype}", bucket, alike)
            return done

        for dtype in (torch.float32, torch.bfloat16):
            for into in (encoding.RANKS, encoding.SENDERS):
                out = torch.zeros(ends[-1], dtype=dtype, device=self._device)
                right = torch.zeros(ends[-1], dtype=dtype, device="cpu")
                cpu.bucket(right).average(
                    *(data, starts[:, 0].tolist(), nbytes.tolist(), ends, used),
                    into == encoding.SENDERS,
                    _SCALE,
                )
                decoded(into, 2, out, right)
        out, right = out.float(), right.float()
        for into in (encoding.PLACE, encoding.ADD):
            for frame, (start, stop) in zip(made[0], spans, strict=True):
                if into == encoding.PLACE:
                    cpu.decode(frame, right[start:stop], None)
                else:
                    cpu.decode_add(frame, right[start:stop], _SCALE)
            decoded(into, 1, out, right)
        self._begin("a decode of a damaged frame")
        longest = int(nbytes[0].argmax())
        first, size = int(starts[0, longest]), int(nbytes[0, longest])
        there[first + size // 2] ^= 1
        span = list(spans[longest])
        read = encoding.decode(out, there, span, [first], [size], 1, encoding.PLACE, 1.0)
        same = not read and same_bits(out.cpu(), right)
        what = "verdict on a damaged frame"
        self._compare(what, bucket, [same or i != longest for i in range(len(spans))])

    def _own(self, bucket: "_Bucket", made: Sequence[list[bytes]]) -> None:
        """Test the reduce-scatter: cut frames by owner, and merge the frames of two ranks."""
        own = [i for i, case in enumerate(bucket.cases) if _is_divided(case)]
        codecs = [bucket.cases[i].codec for i in own]
        cuts = [[0, case.numel * 2 // 5, case.numel] for case in bucket.cases]
        core = cpu.bucket(torch.empty(0, device="cpu"))
        messages = []
        for frames in (made[0], made[-1]):
            self._begin(f"a split of {len(own)} frames")
            data = [_bytes(frames[i]) for i in own]
            sizes, counts = [len(each) for each in data], [Frame(frames[i]).count for i in own]
            bounds, whose = [cuts[i] for i in own], [[0, 1]] * len(own)
            joined = torch.cat(data).to(self._device)
            found = splitting.split(codecs, joined, sizes, counts, bounds, whose, 2)
            parts = [
                core.split([codec], each, [each.numel()], [count], [cut], [[0, 1]], 2)
                for codec, each, count, cut in zip(codecs, data, counts, bounds, strict=True)
            ]
            every = [list(part) for part in zip(*parts, strict=True)]
            ours = [_pieces(each, theirs) for each, theirs in zip(found or (), every, strict=False)]
            pairs = zip(parts, zip(*ours, strict=True), strict=False)
            alike = [all(map(torch.equal, theirs, each)) for theirs, each in pairs]
            self._compare_some("cut frame", bucket, own, alike or [False] * len(own))
            messages.append(torch.cat(every[0]))
        self._begin(f"a merge of {len(own)} ranges")
        sent, stops = torch.cat(messages), list(accumulate(map(len, messages)))
        places = [0, stops[0], *stops]
        ends, used = [end for i in own for end in cuts[i][:2]], [False] * len(own)
        ranges = merging.Ranges(codecs, [bucket.there[i] for i in own], ends, used)
        merged, _, _ = merging.merge(sent.to(self._device), places, ranges)
        here = [bucket.here[i] for i in own]
        right, error, _ = core.merge(sent, places, codecs, here, ends, used)
        if error is not None:
            raise error
        (lengths,) = core.frame_sizes(right, [0, right.numel()], [len(own)])
        theirs = list(torch.split(right, lengths or []))
        alike = list(map(torch.equal, _pieces(merged, theirs), theirs))
        self._compare_some("merged frame", bucket, own, alike)

    def _compare_some(
        self, what: str, bucket: "_Bucket", which: Sequence[int], equal: Sequence[bool]
    ) -> None:
        every = dict(zip(which, equal, strict=True))
        self._compare(what, bucket, [every.get(i, True) for i in range(len(bucket.cases))])

    def _compare_states(self, bucket: "_Bucket") -> None:
        self._begin("a copy of the states")
        pairs = zip(bucket.there, bucket.here, strict=True)
        self._compare("state", bucket, [held(ours) == held(core) for ours, core in pairs])


class _Bucket:
    """Tensors one after another, with a state on the device and one on the host for each."""

    def __init__(self, every: Sequence[Case], device: torch.device) -> None:
        self.cases = every
        stops = list(accumulate(case.numel for case in every))
        self.spans = list(zip([0, *stops], stops, strict=False))
        self.ends = [end for span in self.spans for end in span]
        self.here = [cpu.init_state(case.codec, case.numel, case.title, 3) for case in every]
        self.there: list[Any] = [
            init_state(case.codec, case.numel, case.title, 3) for case in every
        ]


def _values(numel: int, step: int) -> torch.Tensor:
    """Return random numbers with heavier tails than the normal distribution, as gradients have."""
    uniform = np.random.default_rng(step).random(numel, np.float32) * 2 - 1
    return torch.from_numpy(uniform * uniform * uniform)


def _cut(data: torch.Tensor, sizes: NDArray[np.int64]) -> list[bytes]:
    held = data.numpy().tobytes()
    return [held[end - size : end] for size, end in zip(sizes, np.cumsum(sizes), strict=True)]


def _bytes(frame: bytes) -> torch.Tensor:
    return torch.frombuffer(bytearray(frame), dtype=torch.uint8)


def _pieces(data: torch.Tensor, like: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """Split bytes of the device into pieces of the lengths of others, as far as they go."""
    held, stops = data.cpu(), [0, *accumulate(map(len, like))]
    return [held[first:stop] for first, stop in pairwise(stops)]


def _is_divided(case: Case) -> bool:
    """Tell whether a codec supports the reduce-scatter."""
    codec = case.codec
    return case.numel > 1 and bool(owners_for(codec.sparsify, codec.quantize, codec.memory))
