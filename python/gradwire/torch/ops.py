"""The operators ``torch.ops.gradwire.*``, with their implementations for fake tensors.

=================  ============================================================
``decode``         ``(Tensor frame, int numel) -> Tensor``: a new float32 tensor
``decode_``        ``(Tensor(a!) out, Tensor frame) -> ()``: overwrites
``decode_add_``    ``(Tensor(a!) out, Tensor frame, float scale) -> ()``: adds
=================  ============================================================

``frame`` is a uint8 tensor with the bytes of one frame. The operators are meant for graphs
(``torch.compile``, ``torch.export``); eager code can use `gradwire.torch.decode` and `decode_add`
instead. There is no operator for encoding, because its state is not a tensor.
"""

from collections.abc import Callable

import torch

from gradwire import errors
from gradwire.torch import tensors

LIBRARY = torch.library.Library("gradwire", "DEF")  # type: ignore[no-untyped-call]
"""Kept alive, because the operators are unregistered with it."""

# They read frames on the host, which no CUDA graph can hold. Old releases have no such tag.
_TAGS = tuple(filter(None, [getattr(torch.Tag, "cudagraph_unsafe", None)]))


def _decode(frame: torch.Tensor, numel: int) -> torch.Tensor:
    out = tensors.decode(frame, max_numel=numel)
    if out.numel() != numel:
        # A graph was traced with this length, and the fake below promises it.
        raise errors.CorruptFrameError(f"expected {numel} elements, got {out.numel()}")
    return out


def _decode_out(out: torch.Tensor, frame: torch.Tensor) -> None:
    tensors.decode(frame, out)


def _decode_add(out: torch.Tensor, frame: torch.Tensor, scale: float) -> None:
    tensors.decode_add(frame, out, scale)


def _fake_decode(frame: torch.Tensor, numel: int) -> torch.Tensor:
    return frame.new_empty((numel,), dtype=torch.float32)


def _fake_in_place(*_: object) -> None:
    return None


def register(schema: str, run: Callable[..., object], fake: Callable[..., object]) -> None:
    """Register an operator for every device, and its implementation for fake tensors."""
    name = schema.partition("(")[0]
    # torch's own functions have no types.
    LIBRARY.define(schema, tags=_TAGS)  # type: ignore[no-untyped-call]
    # For every device: a backend with kernels of its own registers them beside this.
    LIBRARY.impl(name, run, "CompositeExplicitAutograd")  # type: ignore[no-untyped-call]
    torch.library.register_fake(f"gradwire::{name}", fake, lib=LIBRARY)


register("decode(Tensor frame, int numel) -> Tensor", _decode, _fake_decode)
register("decode_(Tensor(a!) out, Tensor frame) -> ()", _decode_out, _fake_in_place)
register(
    "decode_add_(Tensor(a!) out, Tensor frame, float scale) -> ()", _decode_add, _fake_in_place
)
