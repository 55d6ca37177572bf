"""What passes from the hook to the threads: steps, their buckets, and buckets under way."""

import threading
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.distributed as dist
from numpy.typing import NDArray

from gradwire.torch.ddp.layout import Layout, Parameter

__all__ = ["Buffers", "Flight", "Job", "Step", "spoil"]


@dataclass(slots=True, eq=False)
class Step:
    """One backward pass: what has to be undone if it must not count.

    Attributes
    ----------
    number : int
        Backward passes before it, over resumes; the same on all ranks.
    encoded : dict
        Parameters encoded in this step and not rolled back, by name.
    limits : list
        Parameters whose limits have taken in sizes of this step, each with its limit before.
    error : BaseException or None
        Why the step does not count.
    held : list of Job
        Buckets that are done, but wait for the verdict on the whole step.
    finished, counted : bool
        Whether its end has come, and whether it stands.
    """

    number: int = 0
    encoded: dict[str, Parameter] = field(default_factory=dict)
    error: BaseException | None = None
    held: list["Job"] = field(default_factory=list)
    limits: list[tuple[Parameter, list[int]]] = field(default_factory=list)
    finished: bool = False
    counted: bool = False

    def encode(self, parameter: Parameter, gradient: NDArray[Any] | None = None) -> None:
        """Note that the parameter's state has moved on with a gradient, and measure it if given."""
        self.encoded[parameter.name] = parameter
        if gradient is not None:
            parameter.measure(gradient)

    def observe(self, parameter: Parameter, wanted: int) -> None:
        """Let the parameter's limit take in the largest size, in bytes, that a rank wanted."""
        self.limits.append((parameter, parameter.limit.state()))
        parameter.limit.observe(wanted)

    def undo(self, parameter: Parameter) -> None:
        """Roll the parameter's state back to what it was before this step."""
        del self.encoded[parameter.name]
        parameter.state.rollback()
        parameter.unmeasure()

    def undo_all(self) -> None:
        """Roll back all that this step has changed; the second time there is nothing left."""
        for parameter in list(self.encoded.values()):
            self.undo(parameter)
        while self.limits:
            parameter, limit = self.limits.pop()
            parameter.limit.load(limit)


@dataclass(slots=True, eq=False)
class Job:
    """One bucket, as the hook hands it over.

    Attributes
    ----------
    buffer : torch.Tensor
        Its gradients: floating-point numbers of shape (entries,), or a sparse tensor.
    result : torch.Tensor
        What its future is resolved with: the buffer, or another sparse tensor in its place.
    scale : float
        The loss scale, 1.0 without one.
    """

    layout: Layout
    buffer: torch.Tensor
    result: torch.Tensor
    step: Step
    last: bool
    scale: float
    future: "torch.futures.Future[Any]"
    enqueued: float


@dataclass(slots=True, eq=False)
class Flight:
    """One bucket whose collectives are under way.

    Attributes
    ----------
    works : tuple of torch.distributed.Work
        What has to be waited for.
    collectives : int
        What it took, those included that are done.
    contents : object
        What the exchange that made it needs to go on.
    room : int
        Bytes that this rank may fill, and hands to the collectives.
    wire : float
        Bytes that it sends thereby.
    """

    job: Job
    sequence: int
    works: "tuple[dist.Work, ...]" = ()
    collectives: int = 1
    contents: object = None
    room: int = 0
    wire: float = 0.0
    error: BaseException | None = None


class Buffers:
    """Reusable byte tensors: a fresh one in each step would be page faults in each step.

    The first slots of a parameter are as long as the codec's bound, later ones as long as frames
    turn out to be. So a tensor of more than twice the length that was the most in the last two
    steps is let go.
    """

    def __init__(self) -> None:
        self._free: list[torch.Tensor] = []
        self._lock = threading.Lock()
        self._step: int | None = None
        self._most = [0, 0]  # bytes asked for at once: in this step, and in the one before

    def take(self, nbytes: int, step: int) -> torch.Tensor:
        """Return a uint8 tensor of at least nbytes: the smallest that fits, or a new one.

        Parameters
        ----------
        nbytes : int
        step : int
            The number of the step that it is for.
        """
        with self._lock:
            if step != self._step:
                self._step = step
                self._free = [each for each in self._free if each.numel() <= self._limit]
                self._most = [0, self._most[0]]
            self._most[0] = max(self._most[0], nbytes)
            self._free.sort(key=torch.Tensor.numel)
            for index, tensor in enumerate(self._free):
                if tensor.numel() >= nbytes:
                    return self._free.pop(index)
            if self._free:  # too small for what is asked now: let it go rather than keep both
                self._free.pop()
        return torch.empty(nbytes, dtype=torch.uint8)

    def give(self, tensor: torch.Tensor) -> None:
        """Take a tensor back."""
        with self._lock:
            self._free.append(tensor)

    @property
    def nbytes(self) -> int:
        """Bytes of all that is held and not in use."""
        with self._lock:
            return sum(tensor.numel() for tensor in self._free)

    @property
    def _limit(self) -> int:
        return 2 * max(self._most)


def spoil(bucket: torch.Tensor) -> torch.Tensor:
    """Return a bucket that is infinite: in place, or for a sparse one a tensor with such an entry.

    That no optimizer takes its gradients for good, and that a loss scaler sees them.
    """
    if bucket.layout == torch.strided:
        return bucket.fill_(torch.inf)
    at = torch.zeros((bucket.sparse_dim(), 1), dtype=torch.int64)
    values = torch.full((1, *bucket.shape[bucket.sparse_dim() :]), torch.inf, dtype=bucket.dtype)
    return torch.sparse_coo_tensor(at, values, bucket.shape, is_coalesced=True)
