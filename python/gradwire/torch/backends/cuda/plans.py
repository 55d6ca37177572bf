"""What codecs are to the kernels, and plans: what lasts from step to step of the same tensors.

A plan has a share of the device's memory to work in, and belongs to one thread: a call of its
encode is over when the next one begins, because each waits for its outcomes.
"""

import ctypes
import threading
import weakref
from collections import OrderedDict
from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch

from gradwire.extension import Quantizer, Sparsifier
from gradwire.torch.backends.cuda import structs
from gradwire.torch.backends.cuda.operators import operators

if TYPE_CHECKING:
    from gradwire.codec import Codec

__all__ = ["Plan", "completed", "plan_for", "takes"]

_MOST = 64  # plans that a thread keeps

_kept = threading.local()


def takes(codec: "Codec") -> bool:
    """Tell whether kernels encode by this codec.

    They do not call parts that are written in Python, and keep two buffers, of float32.
    """
    outside = isinstance(codec.sparsify, Sparsifier) or isinstance(codec.quantize, Quantizer)
    kept = codec.memory
    small = getattr(kept, "low_memory", False) or getattr(kept, "dtype", "float32") != "float32"
    return not outside and isinstance(codec.indices, str) and not small


def completed(codecs: Sequence["Codec"], numels: Sequence[int]) -> torch.Tensor:
    """Return the structs of tensors of these lengths, as bytes; their pointers are not set."""
    pieces = (structs.Piece * len(codecs))()
    for piece, codec, numel in zip(pieces, codecs, numels, strict=True):
        assert isinstance(codec.indices, str)
        piece.numel = numel
        piece.indices = structs.INDICES.index(codec.indices)
        piece.memory = structs.memory_of(codec.memory)
        piece.sparsify = structs.sparsify_of(codec.sparsify)
        stages = getattr(codec.sparsify, "stages", 0)
        piece.sparsify.start_stages = stages if isinstance(stages, int) else 0
        piece.quantize = structs.quantize_of(codec.quantize)
        piece.pattern = structs.pattern_of(codec)
    data = torch.empty(ctypes.sizeof(pieces), dtype=torch.uint8, device="cpu")
    ctypes.memmove(data.data_ptr(), pieces, ctypes.sizeof(pieces))
    done: torch.Tensor = operators().complete_pieces(data)
    return done


class Plan:
    """The shape of the work on some parts of a flat tensor, and the memory that it takes.

    Parameters
    ----------
    codecs : sequence of Codec
        Of each part.
    ends : sequence of int
        Start and stop of each part, alternating.
    like : torch.Tensor
        Of the device and dtype of the tensors.
    """

    def __init__(self, codecs: Sequence["Codec"], ends: Sequence[int], like: torch.Tensor) -> None:
        self.codecs = tuple(codecs)
        starts = list(ends[::2])
        self.numels = [stop - start for start, stop in zip(starts, ends[1::2], strict=True)]
        self.most = [
            codec.max_encoded_len(numel) for codec, numel in zip(codecs, self.numels, strict=True)
        ]
        pieces = completed(codecs, self.numels)
        self.number: int = operators().encode_plan(pieces, starts, like)
        weakref.finalize(self, operators().encode_forget, self.number).atexit = False

    def of(self, codecs: Sequence["Codec"]) -> bool:
        """Tell whether these are the very codecs that were planned for."""
        return len(codecs) == len(self.codecs) and all(
            one is other for one, other in zip(codecs, self.codecs, strict=True)
        )


def plan_for(codecs: Sequence["Codec"], ends: Sequence[int], like: torch.Tensor) -> Plan:
    """Return this thread's plan for such tensors; another one if codecs have changed."""
    plans: OrderedDict[object, Plan] | None = getattr(_kept, "plans", None)
    if plans is None:
        plans = _kept.plans = OrderedDict()
    key = (like.device, like.dtype, tuple(ends))
    plan = plans.get(key)
    if plan is None or not plan.of(codecs):
        plans.pop(key, None)
        plan = plans[key] = Plan(codecs, ends, like)
        if len(plans) > _MOST:
            plans.popitem(last=False)
    plans.move_to_end(key)
    return plan
