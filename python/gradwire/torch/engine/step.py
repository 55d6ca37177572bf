"""The objects of the pipeline: steps, the tasks and buckets of each, and their buffers."""

import operator
import threading
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, field
from typing import Any

import torch

from gradwire.torch import backends
from gradwire.torch.backends import Backend, Bucket
from gradwire.torch.engine.bucket_contents import BucketContents
from gradwire.torch.engine.parameter import ParameterSlot, SizeLimit

_LIMIT = operator.attrgetter("limit")


@dataclass(slots=True, eq=False)
class Step:
    """One backward pass, and what must be undone if it does not count."""

    number: int = 0  # passes that counted before it, also before a resume; the same on all ranks
    # Compressed parameters that were submitted, whatever the outcome: the same on all ranks.
    asked: list[ParameterSlot] = field(default_factory=list)
    encoded: dict[str, ParameterSlot] = field(default_factory=dict)  # and not rolled back, by name
    # Encodings in progress on devices, with functions that wait for them and record the outcome.
    awaited: dict[object, Callable[[], object]] = field(default_factory=dict)
    error: BaseException | None = None  # why it does not count
    completed: list[Bucket] = field(default_factory=list)  # that wait for its outcome
    limits: list[tuple[SizeLimit, list[int]]] = field(default_factory=list)  # before it
    finished: bool = False
    counted: bool = False
    # The links of the optimizers whose steps have not applied it: none without attach(optimizer=).
    unapplied: set[Any] = field(default_factory=set)
    revoked: set[Any] = field(default_factory=set)  # those whose parameters were rolled back
    prepare: Callable[[], None] | None = None  # called by the sending thread before it encodes
    refused: BaseException | None = None  # raised by that: no rank exchanges its buckets
    # Undo the measurements of ratios, by names of parameters.
    ratios: dict[str, Callable[[], object]] = field(default_factory=dict)

    def observe(self, parameters: Iterable[ParameterSlot], wanted: Iterable[int]) -> None:
        """Update the limits with the largest sizes, in bytes, that any rank wanted."""
        limits = list(map(_LIMIT, parameters))
        self.limits += zip(limits, SizeLimit.observe(limits, wanted), strict=True)

    def undo(
        self, parameters: Iterable[ParameterSlot], agreed: Collection[ParameterSlot] = ()
    ) -> None:
        """Roll back the states of these parameters to what they were before this step.

        Ratios and limits, too, if all ranks do: with other limits, slots would be of other sizes.
        """
        kinds: dict[str, tuple[Backend, list[Any]]] = {}
        for parameter in parameters:
            del self.encoded[parameter.name]
            parameter.unmeasure()
            backend = backends.backend_for(parameter.tensor)
            kinds.setdefault(backend.name, (backend, []))[1].append(parameter.state)
        for backend, states in kinds.values():
            backend.rollback(states)
        for slot in agreed:
            self.ratios.pop(slot.name, bool)()
        limits = set(map(_LIMIT, agreed))
        for limit, before in reversed(self.limits if limits else ()):
            if limit in limits:
                limit.load(before)

    def undo_all(self) -> None:
        """Roll back everything that this step changed. A second call has no effect."""
        while self.awaited:
            self.awaited.popitem()[1]()
        self.undo(list(self.encoded.values()))
        while self.ratios:
            self.ratios.popitem()[1]()
        # The newest first: what was observed at 4,000 and then at 5,000 bytes ends as before both.
        while self.limits:
            limit, before = self.limits.pop()
            limit.load(before)


@dataclass(slots=True, eq=False)
class BucketTask:
    """One bucket, as it is submitted: the gradients, and the future of their average.

    The loss scale is read by the sending thread alone: that may wait for a device. With ``unused``,
    a gradient that is zero on every rank counts as unused: its state stays as it was. ``error`` is
    the reason why this rank has no gradients to encode; exchanges raise it where errors of encodes
    reach the other ranks.
    """

    contents: BucketContents
    bucket: Bucket
    step: Step
    last: bool
    read_scale: Callable[[], float] | None
    enqueued: float  # by time.perf_counter
    unused: bool = True
    error: BaseException | None = None
    scale: float = 1.0  # what `read_scale` has returned in the sending thread


@dataclass(eq=False)
class InFlightBucket:
    """One bucket whose exchange is in progress, or could not be started because of an error."""

    task: BucketTask
    sequence: int  # its number since `attach` or the last resume
    error: BaseException | None = None


class BufferPool:
    """Reusable byte tensors; new ones would cost page faults in every step.

    The first slots of a parameter are as long as the codec's bound, later ones only as long as its
    frames need. So a tensor more than twice as long as the longest one requested in the last two
    steps is freed.
    """

    def __init__(self) -> None:
        self._free: list[tuple[torch.Tensor, Any]] = []
        self._lock = threading.Lock()
        self._step: int | None = None
        self._most = [0, 0]  # longest request in bytes: in this step, and in the previous one

    def take(self, nbytes: int, step: int, bucket: Bucket) -> torch.Tensor:
        """Return a uint8 tensor of at least nbytes, on the device that needs the bucket's frames.

        It is the smallest that fits, or a new one; ``step`` is the number of the step that uses it.
        """
        device = bucket.frames_on
        with self._lock:
            if step != self._step:
                self._step = step
                longest = 2 * max(self._most)
                for at in reversed(range(len(self._free))):
                    if self._free[at][0].numel() > longest:
                        del self._free[at]
                self._most = [0, self._most[0]]
            self._most[0] = max(self._most[0], nbytes)
            fits: tuple[int, int] | None = None  # bytes and place of the shortest that is enough
            most: tuple[int, int] | None = None  # and of the longest
            for at, (tensor, _) in enumerate(self._free):
                if tensor.device == device:
                    length = tensor.numel()
                    if length >= nbytes and (fits is None or length < fits[0]):
                        fits = length, at
                    if most is None or length > most[0]:
                        most = length, at
            if fits is not None:
                tensor, mark = self._free.pop(fits[1])
                if mark is not None:
                    bucket.follow(mark)
                return tensor
            if most is not None:  # all are too short: free the longest rather than keep both
                self._free.pop(most[1])
        return torch.empty(nbytes, dtype=torch.uint8, device=device)

    def give(self, tensor: torch.Tensor, mark: Any = None) -> None:
        """Give a tensor back for reuse, once the event that `Bucket.used` returned has happened."""
        with self._lock:
            self._free.append((tensor, mark))

    def clear(self) -> None:
        """Free the tensors that are not in use."""
        with self._lock:
            self._free.clear()

    @property
    def nbytes(self) -> int:
        """Total bytes of the tensors that are not in use."""
        with self._lock:
            return sum(tensor.numel() for tensor, _ in self._free)
