"""The slot of a parameter: its codec, state, size limit and memory order."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar, cast

import numpy as np
import torch
from numpy.typing import NDArray

from gradwire._codec import Codec
from gradwire.state import State
from gradwire.torch import backends
from gradwire.torch.engine.sharding import Shard, laid_out

T = TypeVar("T")

# Arrays of a parameter's state with a value per entry, in memory order; None without them.
BUFFERS = ("residual", "momentum", "second_moment", "estimate")
BUCKET_NBYTES = 25 << 20  # capacity of a bucket: one is encoded while another is exchanged


def plain_names(named: Mapping[str, T]) -> dict[str, T]:
    """Return parameters by name, without the prefix that `torch.compile` adds.

    A checkpoint may be saved with `torch.compile` and loaded without it, or vice versa.
    """
    plain = {name.replace("_orig_mod.", ""): value for name, value in named.items()}
    return plain if len(plain) == len(named) else dict(named)


# Lowest limit in bytes, unless the codec's bound is lower: a frame without entries must fit.
FLOOR = 128
_UNSEEN = -1


class SizeLimit:
    """Size limit of one parameter's frames, computed from sizes known to every rank.

    Every rank makes the same observations, so every rank computes the same limit, in integers,
    without communication. The estimator is that of TCP's retransmission timeout: a running mean
    and a running mean deviation of the largest size wanted on any rank. A frame that would be
    larger is trimmed, and the rest stays in the residual; so a limit that is slightly too low only
    delays entries by a step, while one that is too high costs bytes on the wire in every step.

    Limits belong to parameters, not to buckets: which entries are trimmed must not depend on how
    DDP groups the parameters, or a resumed run would differ from an uninterrupted one.

    The bound, in bytes on any frame of the parameter, is the limit until the first observation. It
    is always used if ``fixed``: for codecs without a memory, where trimming would lose entries, or
    whose frames cannot be trimmed.

    References
    ----------
    V. Jacobson, "Congestion Avoidance and Control", SIGCOMM 1988, appendix A.
    """

    __slots__ = ("_bound", "_dev4", "_fixed", "_mean8", "nbytes")

    def __init__(self, bound: int, *, fixed: bool = False) -> None:
        self._bound = bound
        self._fixed = fixed
        self.nbytes = bound  # the limit
        self.reset()

    @staticmethod
    def observe(limits: Sequence["SizeLimit"], wanted: Iterable[int]) -> list[list[int]]:
        """Record the largest sizes, in bytes, that any rank wanted; return each `state` before."""
        before = []
        for limit, nbytes in zip(limits, wanted, strict=True):
            mean8, dev4 = limit._mean8, limit._dev4
            before.append([mean8, dev4])
            if mean8 == _UNSEEN:
                limit._mean8, limit._dev4 = 8 * nbytes, 2 * nbytes
            else:
                error = nbytes - (mean8 >> 3)
                limit._mean8, limit._dev4 = mean8 + error, dev4 + abs(error) - (dev4 >> 2)
        SizeLimit._update(limits)
        return before

    @staticmethod
    def _update(limits: Iterable["SizeLimit"]) -> None:
        for limit in limits:
            limit.nbytes = limit._bound
            if not limit._fixed and limit._mean8 != _UNSEEN:
                # Frames of 4,000 bytes that differ from that by 200 on average get 4,478.
                mean = limit._mean8 >> 3
                wanted = mean + 2 * (limit._dev4 >> 2) + (mean >> 6) + 16
                limit.nbytes = min(max(wanted, FLOOR), limit._bound)

    def reset(self) -> None:
        """Forget every observation."""
        self.load([_UNSEEN, 0])

    def state(self) -> list[int]:
        """Return the two integers that `load` takes."""
        return [self._mean8, self._dev4]

    def load(self, state: list[int]) -> None:
        """Restore what `state` returned."""
        self._mean8, self._dev4 = state
        self._update([self])


@dataclass(slots=True, eq=False)
class ParameterSlot:
    """The record of one parameter, under its name, throughout training.

    A parameter that is never compressed has no codec, state or limit. The state is one of its
    backend.
    """

    name: str
    tensor: torch.Tensor
    codec: Codec = field(default=cast(Codec, None))
    state: State = field(default=cast(State, None))
    limit: SizeLimit = field(default=cast(SizeLimit, None))
    turn: int = 0  # determines the leader: in step s, rank s + turn modulo the world size
    # Determines the owners of its entries: how many entries of compressed parameters come after it
    # in the model, and how many of them a bucket has. Headers of frames count as entries.
    run: tuple[int, int] = (0, 1)
    paused: bool = False  # it is sent dense at present, and keeps its state
    computed: bool = False  # its codec does part of the optimizer's work, and sends updates
    estimates: bool = False  # what is sent changes an estimate, which the state has for all ranks
    # float32, shape (numel,): the sum of this rank's gradients, if a schedule needs it, and the
    # same sum without the last gradient.
    measured: NDArray[np.float32] | None = None
    measured_before: NDArray[np.float32] | None = None
    strides: tuple[int, ...] | None = None  # in buckets and states; None before the first bucket
    share: Shard | None = None  # what this rank encodes, and keeps a state of; None for all of it
    rate: float | None = None  # the optimizer's learning rate in this step, if it follows one
    ratio: Any = None  # a `SquareRatio`, once one is measured; set by `use_ratio`
    root: float = 1.0  # what steps are divided by: as long as if the ratio were in the moment

    @property
    def has_state(self) -> bool:
        """Whether it has a codec, a state and a limit."""
        return self.state is not None

    @property
    def compressed(self) -> bool:
        """Whether it is currently sent compressed."""
        return self.state is not None and not self.paused

    def set_rate(self, rate: float) -> None:
        """Have a codec that computes steps make them with this learning rate of the optimizer."""
        self.rate = rate
        self.state.learning_rate = rate / self.root

    def use_ratio(self, ratio: Any) -> None:
        """Use another ratio of squares; a rate that is set already counts with it."""
        self.ratio, self.root = ratio, 1.0 if ratio is None else ratio.root
        if self.rate is not None:
            self.set_rate(self.rate)

    def measure(self, gradient: NDArray[Any]) -> None:
        """Add a gradient to the measured sum; `unmeasure` subtracts it exactly."""
        if self.measured is None:
            return
        total = self.measured_before
        total = np.empty_like(self.measured) if total is None else total
        np.add(self.measured, gradient, out=total, casting="unsafe")
        self.measured, self.measured_before = total, self.measured

    def unmeasure(self) -> None:
        """Restore the sum without the last gradient. Only one gradient can be undone."""
        if self.measured is not None and self.measured_before is not None:
            self.measured, self.measured_before = self.measured_before, self.measured

    @property
    def numel(self) -> int:
        """Number of entries for which this rank keeps a state."""
        return self.tensor.numel() if self.share is None else self.share.numel

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of the part for which this rank keeps a state."""
        return tuple(self.tensor.shape) if self.share is None else self.share.shape

    def own(self, values: torch.Tensor) -> torch.Tensor:
        """Return the part for which this rank keeps a state, of values of the parameter's shape."""
        return values if self.share is None else self.share.of(values)

    @property
    def step(self) -> int | None:
        """Encodes so far; None where its state does not count them."""
        return getattr(self.state, "step", None)

    @property
    def nbytes(self) -> int:
        """Bytes kept for it between steps. Call it when no other thread uses the state."""
        measured = (self.measured, self.measured_before)
        sums = sum(total.nbytes for total in measured if total is not None)
        return sums + (self.state.nbytes if self.has_state else 0)

    @property
    def width(self) -> int:
        """Numbers per entry in a bucket: DDP views a complex entry as two."""
        return 2 if self.tensor.is_complex() else 1


@dataclass(frozen=True, slots=True)
class BucketSlice:
    """A parameter's place in a bucket's flat buffer: entries start to stop."""

    parameter: ParameterSlot
    start: int
    stop: int


def to_logical(flat: NDArray[Any], parameter: ParameterSlot) -> torch.Tensor:
    """Return a copy of values in memory order as a contiguous tensor of the parameter's shape.

    The values are float32, or the bits of bfloat16 as uint16; the tensor then is bfloat16.
    """
    values = torch.from_numpy(flat)
    if values.dtype == torch.uint16:
        values = values.view(torch.bfloat16)
    shape = parameter.shape
    return values.as_strided(shape, strides_of(parameter)).clone().contiguous()


def to_memory(
    values: torch.Tensor, parameter: ParameterSlot, dtype: torch.dtype = torch.float32
) -> NDArray[Any]:
    """Return values of the parameter's shape in memory order; the inverse of `to_logical`."""
    flat = torch.empty(parameter.numel, dtype=dtype, device="cpu")
    flat.as_strided(parameter.shape, strides_of(parameter)).copy_(values)
    return (flat.view(torch.uint16) if dtype == torch.bfloat16 else flat).numpy()


def observe(parameter: ParameterSlot) -> None:
    """Record the memory order of a parameter once DDP has made its buckets.

    If it has changed, the state's arrays are reordered. The state must not be in use.
    """
    if parameter.share is not None:  # its rows were divided by the order in which they were
        return
    shape, strides, before = parameter.tensor.shape, laid_out(parameter.tensor), parameter.strides
    if before is not None and not _same(shape, strides, before):
        saved = parameter.state.state_dict()
        buffers = {
            buffer: to_logical(saved[buffer], parameter)
            for buffer in BUFFERS
            if saved.get(buffer) is not None
        }
        parameter.strides = strides
        moved = {
            buffer: to_memory(values, parameter, values.dtype) for buffer, values in buffers.items()
        }
        parameter.state.load_state_dict(saved | moved)
    parameter.strides = strides


def strides_of(parameter: ParameterSlot) -> tuple[int, ...]:
    """Return the strides of a parameter's gradient in memory order."""
    if parameter.share is not None:
        return parameter.share.strides
    return parameter.strides or laid_out(parameter.tensor)


def _same(shape: Sequence[int], one: Sequence[int], other: Sequence[int]) -> bool:
    """Compare strides, ignoring dimensions of length 1."""
    return all(a == b for length, a, b in zip(shape, one, other, strict=True) if length != 1)


def make_slots(
    named: Mapping[str, torch.nn.Parameter],
    dense: set[str],
    codec_of: Callable[[str], Codec | None],
    rank: int,
    bucket_nbytes: int | None,
    share_of: Callable[[str, torch.Tensor], Shard | None],
) -> list[ParameterSlot]:
    """Return the slots of all parameters, in their order.

    Parameters that are ``dense``, or have no codec, are never compressed. The rank selects the
    random numbers of the states. ``share_of`` returns the part of a parameter that this rank
    encodes; None for all of it.
    """
    slots = []
    for name, tensor in named.items():
        slot = ParameterSlot(name, tensor, share=share_of(name, tensor))
        codec = None if name in dense else codec_of(name)
        if codec is not None:
            set_codec(slot, codec.for_shape(slot.shape))
            slot.state = new_state(slot, rank)
        slots.append(slot)
    _set_positions(slots, bucket_nbytes or BUCKET_NBYTES)
    return slots


def new_state(parameter: ParameterSlot, rank: int) -> State:
    """Return a new state. With stochastic rounding, every rank draws different numbers."""
    init = backends.backend_for(parameter.tensor).init_state
    return init(parameter.codec, parameter.numel, parameter.name, rank)


def set_codec(parameter: ParameterSlot, codec: Codec) -> None:
    """Compress a parameter with a codec from now on, and keep its state."""
    if parameter.codec == codec:
        return
    parameter.codec = codec
    parameter.computed = codec.memory.updates or codec.memory.corrects
    parameter.estimates = codec.memory.estimates
    # Without a memory, trimmed entries would be lost; and a frame of all entries cannot be trimmed.
    fixed = not (codec.memory.keeps and codec.sparsify.selects)
    parameter.limit = SizeLimit(codec.max_encoded_len(parameter.numel), fixed=fixed)


# A frame costs 48 bytes besides its entries, and 8 for magnitudes: as much as 4,096 entries of
# which one in a hundred is sent. Else the owner of three small biases would send a sixth more.
_HEADER = 4096


def _set_positions(slots: Sequence[ParameterSlot], bucket_nbytes: int) -> None:
    """Set `turn` and `run` of all slots, counted in bucket sizes from the end of the model.

    From the end, because the last parameter's gradient is ready first.
    """
    total = sum(_HEADER + slot.numel for slot in slots if slot.has_state)
    nbytes = before = 0
    for slot in reversed(slots):
        itemsize = slot.tensor.element_size()
        slot.turn = nbytes // bucket_nbytes
        nbytes += slot.tensor.numel() * itemsize
        if slot.has_state:
            before += _HEADER
            slot.run = before, min(total, bucket_nbytes // itemsize)
            before += slot.numel
