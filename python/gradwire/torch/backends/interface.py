"""What a backend has to do, in prose and as types.

A backend encodes and decodes tensors that lie on some kind of device. It is a folder here, which
offers the functions of `Backend`, and every folder has the same modules:

=============  ====================================================================================
``tensors``    one tensor at a time: encode, decode, and read a number
``states``     where residuals and moments lie
``buckets``    the gradients of many parameters at once: what DDP exchanges
=============  ====================================================================================

Nothing above the backends asks where a tensor lies; nothing in a backend knows of ranks, steps,
parameters or collectives. All backends give the same frames, byte for byte, the same states and the
same errors.

**A bucket is the unit of work.** Its life has three parts, each in a thread of its own:

1. The *caller's* thread makes it, in the middle of a backward pass. The device may be far behind:
   the bucket remembers what its gradients wait for, as an event, and nobody waits here. Memory may
   be taken, but nothing is read.
2. The *sending* thread reads: it waits for that event, encodes all compressed parameters with one
   call into the memory of a slot, and packs the others behind each other. What comes back to the
   host is a table of a few words per parameter: sizes, counts, and whether a gradient was zero.
   Headers go to the start of a slot by `Bucket.write_header`. What fails there fails before any
   state has changed.
3. The *receiving* thread reads the headers of all slots by `Bucket.read_headers`, decodes the
   frames of all ranks with one call, in the order of ranks, or puts sums in their places.
   `Bucket.resolve` hands the result over so that whatever the caller's stream does next comes after
   it.

Frames lie in tensors of bytes where `Bucket.frames_on` says, and collectives take them from there:
on the device if its collectives can, else on the host. A collective of the device takes its place
in the order of the current stream, when it is started and when it is waited for. So the two threads
work in the blocks `Bucket.sending` and `Bucket.receiving`, each of which has a stream of its own,
and `Bucket.used` and `Bucket.follow` order the use of one tensor by both.

A memory in one buffer cannot go back. So of such parameters the sending thread writes the frames
alone, by `Bucket.encode` with ``deferred``, which `Backend.rollback` undoes by forgetting it. Once
it is known that the step counts, the receiving thread writes the memories by `Bucket.commit`, from
the frames and the gradients, which must be in the bucket until then.

A state is what the backend's `Backend.init_state` made, with the attributes and methods of
`gradwire.State`; its arrays may lie on the device until someone asks for them.
"""

import abc
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray

if TYPE_CHECKING:
    from typing_extensions import Buffer

    from gradwire.codec import Codec
    from gradwire.frame import Frame
    from gradwire.state import State

__all__ = ["Backend", "Bucket", "LeaderEncoding", "Table"]

Table: TypeAlias = NDArray[np.int64]
"""One row a parameter: bytes, entries sent, entries asked for or -1, entries trimmed, whether the
gradient was zero, nanoseconds."""


class Backend(Protocol):
    """The functions of a backend's folder.

    Attributes
    ----------
    name : str
        The name of the folder.
    waits : bool
        Whether reading a number of a tensor makes a thread wait for the device.
    carries : bool
        Whether frames can stay on the device, if collectives take them from there.
    """

    name: str
    waits: bool
    carries: bool

    def encode(
        self,
        codec: "Codec",
        tensor: torch.Tensor,
        state: "State | None",
        max_nbytes: int | None,
        /,
    ) -> "Frame":
        """Encode one tensor, as `gradwire.torch.encode`."""

    def encode_into(
        self,
        codec: "Codec",
        tensor: torch.Tensor,
        state: "State | None",
        out: torch.Tensor,
        max_nbytes: int | None,
        /,
    ) -> int:
        """Encode into bytes of the caller, as `gradwire.torch.encode_into`."""

    def decode(
        self,
        frame: "Frame | Buffer | torch.Tensor",
        out: torch.Tensor | None,
        max_numel: int | None,
        /,
    ) -> torch.Tensor:
        """Decode a frame, as `gradwire.torch.decode`."""

    def decode_add(
        self, frame: "Frame | Buffer | torch.Tensor", out: torch.Tensor, scale: float, /
    ) -> None:
        """Add a decoded frame, as `gradwire.torch.decode_add`."""

    def number(self, tensor: torch.Tensor, /) -> Callable[[], float]:
        """Return what reads a tensor of one number as it is now, in another thread and later.

        Does not wait for the device; the result may, at its first call.
        """

    def init_state(self, codec: "Codec", numel: int, name: str | None, stream: int, /) -> "State":
        """Return the state of a parameter whose gradients lie on the backend's device."""

    def rollback(self, states: "Sequence[State]", /) -> None:
        """Undo the last encode of each state, as `gradwire.State.rollback`."""

    def bucket(self, buffer: torch.Tensor, carried: bool = False, /) -> "Bucket":
        """Return the bucket of a buffer of gradients. Does not wait for the device.

        Parameters
        ----------
        buffer : torch.Tensor
        carried : bool
            The frames stay on the device. Only if the backend `carries` them.
        """


class Bucket(abc.ABC):
    """The gradients of one bucket, until their average has taken their place.

    Positions count entries of the flat buffer. The loss scale is divided out of what is read and
    multiplied into what is written by the methods that take one.

    Attributes
    ----------
    buffer : torch.Tensor
        The caller's: floating-point numbers of shape (entries,), or a sparse tensor.
    future : torch.futures.Future
        Resolved with the buffer, or for a sparse one with another sparse tensor.

    Parameters
    ----------
    buffer, future
        The attributes.
    """

    __slots__ = ("buffer", "future")

    def __init__(self, buffer: torch.Tensor, future: "torch.futures.Future[torch.Tensor]") -> None:
        self.buffer = buffer
        self.future = future

    @property
    def dtype(self) -> torch.dtype:
        """The dtype of the gradients."""
        return self.buffer.dtype

    @property
    def itemsize(self) -> int:
        """Bytes of an entry."""
        return self.buffer.element_size()

    @property
    def nbytes(self) -> int:
        """Bytes of all entries."""
        return self.buffer.numel() * self.itemsize

    @property
    @abc.abstractmethod
    def frames_on(self) -> torch.device:
        """Where frames are written, gathered and read."""

    # Both threads -----------------------------------------------------------------------------

    def used(self, *tensors: torch.Tensor) -> Any:
        """Return a mark of the work that the receiving thread has given the device so far.

        It uses these tensors, which the sending thread has taken: until then their memory must not
        be used for anything else.
        """
        del tensors

    def follow(self, mark: Any) -> None:
        """Let what the sending thread gives the device from now on come after a mark."""
        del mark

    # The sending thread -----------------------------------------------------------------------

    def sending(self) -> AbstractContextManager[None]:
        """Give what is done in this block to the stream of the sending thread.

        It comes after all that the caller's stream was given until the bucket was made.
        """
        return nullcontext()

    @abc.abstractmethod
    def wait(self) -> None:
        """Wait for what the caller's stream was given until the bucket was made."""

    @abc.abstractmethod
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
        """Encode parameters, and write their frames one after another.

        Parameters
        ----------
        codecs, states : sequence
            Of each parameter.
        ends : sequence of int
            Start and stop of each parameter, alternating.
        limits : sequence of int
            Maximum size of each frame in bytes; what does not fit is trimmed.
        positions : sequence
            The positions to send of each parameter, as uint32; None lets its codec select.
        out : torch.Tensor
            uint8; receives the frames.
        scale : float
            The loss scale.
        deferred : bool
            Write the same frames, and change nothing of the states: afterwards `commit` brings them
            to where they would be, and `Backend.rollback` leaves them as they are. Only for
            memories that are not ``undoable``. Of the parts, only the sparsifier may be written in
            Python.

        Returns
        -------
        table : numpy.ndarray
            A row for each parameter that was encoded.
        error : Exception or None
            Why the next one was not, such as `gradwire.NonFiniteError`: its state is unchanged, and
            so are those that follow.
        """

    @abc.abstractmethod
    def encode_leader(
        self, codec: "Codec", state: "State", start: int, stop: int, limit: int, scale: float
    ) -> "LeaderEncoding | None":
        """Encode one parameter whose positions other ranks are to use.

        Returns None if no positions fit into so many bytes.
        """

    @abc.abstractmethod
    def gradient(self, start: int, stop: int, scale: float) -> NDArray[Any]:
        """Return a gradient on the host, for parts and schedules that are written in Python.

        Valid until the next call in the same thread.
        """

    @abc.abstractmethod
    def write_header(self, slot: torch.Tensor, front: NDArray[np.uint8]) -> None:
        """Write bytes of the host to the start of a slot."""

    @abc.abstractmethod
    def values_of(
        self, frames: torch.Tensor, sizes: Sequence[int], numels: Sequence[int], positions: bool
    ) -> tuple[torch.Tensor, NDArray[np.uint32]]:
        """Return the values of this rank's own frames.

        Parameters
        ----------
        frames : torch.Tensor
            uint8: the frames, one after another.
        sizes : sequence of int
            Their bytes.
        numels : sequence of int
            The lengths of their parameters, if all entries are in them; empty if not.
        positions : bool
            Return the positions as well, or none.

        Returns
        -------
        values : torch.Tensor
            float32, where frames are.
        positions : numpy.ndarray
        """

    @abc.abstractmethod
    def pack(self, runs: Sequence[tuple[int, int]], out: torch.Tensor) -> bool:
        """Copy runs of entries to where frames are; tell whether all of them are finite."""

    @abc.abstractmethod
    def not_finite(self, start: int, stop: int, width: int) -> tuple[int, int]:
        """Count the non-finite entries, of so many numbers each; return also the first's place."""

    @abc.abstractmethod
    def sparse(self) -> torch.Tensor:
        """Return a sparse bucket where collectives take it."""

    # The receiving thread ---------------------------------------------------------------------

    def receiving(self) -> AbstractContextManager[None]:
        """Give what is done in this block to the stream of the receiving thread."""
        return nullcontext()

    @abc.abstractmethod
    def read_headers(self, slots: torch.Tensor, nbytes: int) -> NDArray[np.uint8]:
        """Return the first bytes of each slot on the host, one row a slot; not to be written to."""

    @abc.abstractmethod
    def scratch(self) -> "Bucket":
        """Return a bucket with as much room, to write averages to; nobody waits for its future."""

    @abc.abstractmethod
    def commit(
        self,
        states: Sequence["State"],
        ends: Sequence[int],
        frames: torch.Tensor,
        starts: Sequence[int],
        sizes: Sequence[int],
        scale: float,
    ) -> None:
        """Write the memories of parameters that `encode` has encoded with ``deferred``.

        Parameters
        ----------
        states : sequence
            Of each parameter.
        ends : sequence of int
            As in `encode`, as is the scale.
        frames : torch.Tensor
            uint8.
        starts, sizes : sequence of int
            Where this rank's frame of each parameter starts, and its bytes.
        scale : float
            The loss scale.
        """

    @abc.abstractmethod
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
        """Decode the frames of all ranks in their order, and write the averages.

        Parameters
        ----------
        frames : torch.Tensor
            uint8.
        starts : sequence of int
            Where each rank's frames start.
        sizes : sequence of sequence of int
            The sizes of each rank's frames.
        ends : sequence of int
            As in `encode`.
        unused : sequence of bool
            Parameters to set to zero instead.
        senders : bool
            Divide by the number of ranks that sent an entry, not by that of all.
        scale : float
            The loss scale.
        ranks : int, optional
            The frames are not those of all ranks, but sums over so many. On the host alone.

        Returns
        -------
        numpy.ndarray
            Nanoseconds for each parameter.
        """

    @abc.abstractmethod
    def unpack(self, runs: Sequence[tuple[int, int]], values: torch.Tensor) -> None:
        """Write values to the runs that `pack` read."""

    @abc.abstractmethod
    def clear(self, start: int, stop: int) -> None:
        """Write zeros."""

    @abc.abstractmethod
    def scatter(self, places: Sequence[NDArray[np.int64]], values: torch.Tensor) -> None:
        """Write values to places, of which no two are the same."""

    @abc.abstractmethod
    def finite(self) -> bool:
        """Tell whether every entry is finite."""

    @abc.abstractmethod
    def store(self, result: torch.Tensor | None = None) -> None:
        """End writing: bring what was written, or a sparse result, to where the buffer lies."""

    @abc.abstractmethod
    def resolve(self, *, poisoned: bool) -> None:
        """Resolve the future, in the order of the device's work; the worker is done with it.

        Parameters
        ----------
        poisoned : bool
            Make the result infinite first: visibly unusable, which also a loss scaler detects.
        """


@dataclass(frozen=True, slots=True, eq=False)
class LeaderEncoding:
    """What `Bucket.encode_leader` made.

    Attributes
    ----------
    positions : bytes
        For other ranks, as `gradwire._native.unpack_positions` reads them.
    wanted : int
        Their size in bytes without a limit.
    values : torch.Tensor
        This rank's, float32, shape (count,), where frames are.
    table : numpy.ndarray
        The row of the encode.
    """

    positions: bytes
    wanted: int
    values: torch.Tensor
    table: Table
