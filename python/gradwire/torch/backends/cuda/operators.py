"""The operators of the extension, and plans: data reused from step to step for the same tensors.

The state of the first tensor of a bucket owns the bucket's plans. So they live as long as it, and
no two threads use one at a time. Their scratch memory belongs to the thread.
"""

import ctypes
import functools
import operator
import threading
import weakref
from collections import OrderedDict
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from gradwire._codec import Codec
from gradwire.errors import DeviceError
from gradwire.extension import Quantizer, Sparsifier
from gradwire.torch.backends.cuda import structs
from gradwire.torch.backends.staging import naming_loss, staging

_library, _device = "gradwire", "cuda"
"""The tests, which have no GPU, name a library of operators for the CPU."""


def operators() -> Any:
    """Return the operators of the extension, once it is loaded."""
    return getattr(torch.ops, _library)


def are_for(tensor: torch.Tensor) -> bool:
    """Tell whether the operators support the type of a tensor's device."""
    return tensor.device.type == _device


def hindrance(device: torch.device) -> str | None:
    """Return why a device does not run the kernels, or None if it does.

    Launches an empty kernel, without waiting: an obstacle, such as an old driver, shows at launch.
    Raises a DeviceError if the device is lost.
    """
    try:
        with naming_loss(device):
            operators().probe(torch.empty(0, device=device))
    except AttributeError:
        return "the library is of another version of gradwire"
    except DeviceError:
        raise
    except RuntimeError as error:
        return str(error).partition("\n")[0]
    return None


def takes(codec: Codec) -> bool:
    """Tell whether kernels support this codec; none of its parts may be written in Python."""
    outside = isinstance(codec.sparsify, Sparsifier) or isinstance(codec.quantize, Quantizer)
    return not outside and structs.has_kernels(codec)


def completed(
    codecs: Sequence[Codec],
    numels: Sequence[int],
    chosen: Sequence[bool] = (),
    named: Sequence[str | None] = (),
) -> torch.Tensor:
    """Return the structs of tensors of these lengths, as bytes; their pointers are not set.

    With given positions, the smallest entries may be left out of a frame. Frames name the
    sparsifier of kind ``named``, if it is not None.
    """
    pieces = (structs.Piece * len(codecs))()
    for piece, codec, numel in zip(pieces, codecs, numels, strict=True):
        assert isinstance(codec.indices, str)
        piece.numel = numel
        piece.indices = structs.INDICES.index(codec.indices)
        piece.memory = structs.memory_of(codec.memory)
        piece.sparsify = structs.sparsify_of(codec.sparsify)
        piece.quantize = structs.quantize_of(codec.quantize)
        piece.pattern = structs.pattern_of(codec)
    for piece, is_given in zip(pieces, chosen, strict=False):
        piece.given = piece.may_trim = is_given
        if is_given and piece.pattern.kind != structs.CHUNKS:
            piece.pattern = structs.Pattern()
    for piece, kind in zip(pieces, named, strict=False):
        piece.named = 0 if kind is None else 1 + structs.SPARSIFIERS[kind]
    data = torch.empty(ctypes.sizeof(pieces), dtype=torch.uint8, device="cpu")
    ctypes.memmove(data.data_ptr(), pieces, ctypes.sizeof(pieces))
    done: torch.Tensor = operators().complete_pieces(data)
    return done


class EncodePlan:
    """The reusable plan for encoding parts of a flat tensor.

    The parts start and stop at `ends`, alternating. `like` has the device and dtype of the tensors,
    and `given` tells for which parts positions are given, if any; for `named` see `completed`.
    Encodes must not overlap.

    ``shared`` are the states of the last encode: see `states.on_device`. ``shares`` are the parts'
    shares of all entries.
    """

    def __init__(
        self,
        codecs: Sequence[Codec],
        ends: Sequence[int],
        like: torch.Tensor,
        chosen: Sequence[bool] = (),
        named: Sequence[str | None] = (),
    ) -> None:
        self.codecs = tuple(codecs)
        self.shared: list[torch.Tensor] = []
        self._room: int | None = None
        self._nowhere = torch.empty(0, dtype=torch.int32, device=like.device)
        starts = list(ends[::2])
        self.numels = [stop - start for start, stop in zip(starts, ends[1::2], strict=True)]
        self.shares = np.array(self.numels, np.float64) / max(sum(self.numels), 1)
        pieces = completed(codecs, self.numels, chosen, named)
        self.number: int = operators().encode_plan(pieces, starts, like)
        weakref.finalize(self, operators().encode_forget, self.number).atexit = False

    @functools.cached_property
    def most(self) -> list[int]:
        """The maximum bytes of each part's frame."""
        pairs = zip(self.codecs, self.numels, strict=True)
        return [codec.max_encoded_len(numel) for codec, numel in pairs]

    def of(self, codecs: Sequence[Codec]) -> bool:
        """Tell whether these are the same codec objects as in the plan."""
        return len(codecs) == len(self.codecs) and all(map(operator.is_, codecs, self.codecs))

    def encode(
        self,
        gradients: torch.Tensor,
        limits: Sequence[int],
        states: Sequence[torch.Tensor],
        scale: float,
        out: torch.Tensor,
        positions: Sequence[NDArray[np.uint32] | None] = (),
        *,
        most: Sequence[int] = (),
    ) -> torch.Tensor:
        """Encode to bytes on the device, on the current stream, without waiting.

        `most` limits the entries that a top-k codec selects of each part; -1 sets no limit. Returns
        a table of int64 with a row for each part: see csrc/bucket/piece.h.
        """
        there, counts = self._nowhere, list(most)
        if positions:
            counts = [-1 if entries is None else entries.size for entries in positions]
            entries = np.concatenate([chosen for chosen in positions if chosen is not None])
            there = staging(gradients.device).upload(torch.from_numpy(entries.view(np.int32)))
        if self._room is None or counts:
            self._room = operators().encode_room(self.number, counts)
        scratch = thread_memory.scratch(gradients.device, self._room)
        table: torch.Tensor = operators().encode_bucket(
            self.number, gradients, limits, states, scale, out, scratch, there, counts
        )
        return table


class PlanCache:
    """A cache of the most recently used plans for the same parts."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._plans: OrderedDict[object, EncodePlan] = OrderedDict()
        self._last: EncodePlan | None = None

    def of(
        self,
        codecs: Sequence[Codec],
        ends: Sequence[int],
        like: torch.Tensor,
        chosen: Sequence[bool] = (),
        named: Sequence[str | None] = (),
    ) -> EncodePlan:
        """Return the plan for such tensors; a new one if codecs have changed."""
        key = like.device, like.dtype, tuple(ends), tuple(chosen), tuple(named)
        plan = self._plans.get(key)
        if plan is None or not plan.of(codecs):
            plan = self._plans[key] = EncodePlan(codecs, ends, like, chosen, named)
        self._plans.move_to_end(key)
        if len(self._plans) > self._most:
            self._plans.popitem(last=False)
        if not named:  # sums are encoded between encodes of the same parts
            self._last = plan
        return plan

    def takes(self, codecs: Sequence[Codec]) -> bool:
        """Tell whether kernels support these codecs; uses the last plan if there is one."""
        planned = self._last is not None and self._last.of(codecs)
        return planned or all(map(takes, {id(codec): codec for codec in codecs}.values()))


class _ThreadMemory(threading.local):
    """What all calls of a thread share: the work of one thread on a device is ordered."""

    def __init__(self) -> None:
        self.stateless = PlanCache(16)  # of codecs without states, which would otherwise own them
        self._scratch: dict[torch.device, torch.Tensor] = {}

    def scratch(self, device: torch.device, nbytes: int) -> torch.Tensor:
        """Return scratch memory on a device, which only grows."""
        room = self._scratch.get(device)
        if room is None or room.numel() < nbytes:
            self._scratch.pop(device, None)
            room = self._scratch[device] = torch.empty(nbytes, dtype=torch.uint8, device=device)
        return room


thread_memory = _ThreadMemory()
