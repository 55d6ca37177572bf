"""The operators of packed weights, ``torch.ops.gradwire.packed_*``; gradients flow to x alone.

=================  ===================================================================
``packed_linear``  ``x @ W.T``, or ``x @ W`` with ``transposed``, of x's dtype
``packed_rows``    rows of W: all of them, or those at indices, in a dtype of choice
=================  ===================================================================

The gradient of either product is the other one, and its derivative in forward mode is itself.

``frame`` is a uint8 tensor with the bytes of one frame whose checksum was checked before, ``grid``
its bits, block and exponent. On the CPU the core reads the frame in place. On any other device,
torch's own operators decode it there.
"""

import math
from collections.abc import Iterator, Sequence
from typing import Any

import torch

from gradwire import _native
from gradwire._validate import require
from gradwire.torch import cells, ops
from gradwire.torch.backends import BackendInUse
from gradwire.torch.backends.cpu import array_of

FEW = 16
"""Rows of x that are multiplied by codes as they lie; for more, tiles of weights are decoded."""

TILE = 256
"""Rows of weights that are decoded at a time: they stay in the cache while x goes through."""

_HEADER, _PROLOGUE = 48, 8
FLOATS = (torch.float32, torch.float64, torch.float16, torch.bfloat16)


def backend(device: torch.device | str | int) -> BackendInUse:
    """Return the backend that reads packed weights on a device, and the reason.

    Parameters
    ----------
    device : torch.device, str or int
        As for `torch.device`. The device need not exist.

    Returns
    -------
    BackendInUse
        ``"cpu"`` if packed bytes are read in place, ``"decode"`` if each call decodes them on the
        device, and torch multiplies.

    Raises
    ------
    ValueError
        The device is ``"meta"``, which has no values.
    """
    kind = torch.device(device).type
    require(kind != "meta", "tensors on meta have no values to multiply")
    if kind == "cpu":
        return BackendInUse("cpu", "packed weights are read in place")
    return BackendInUse(
        "decode",
        f"gradwire has no kernel for packed weights on {kind}: each call decodes them there, and "
        "torch multiplies",
    )


def _check(x: torch.Tensor, frame: torch.Tensor, width: int) -> None:
    message = "x must have dtype float32, float64, float16 or bfloat16, got {}"
    require(x.dtype in FLOATS, message, x.dtype, kind=TypeError)
    _check_device("x is", x, frame)
    fits = x.dim() > 0 and x.shape[-1] == width
    require(fits, "x must have shape (..., {}), got {}", width, tuple(x.shape))


def _check_device(name: str, x: torch.Tensor, frame: torch.Tensor) -> None:
    message = "{} on {} and the packed weights are on {}: move one of them with .to()"
    require(x.device == frame.device, message, name, x.device, frame.device)


def _linear(
    x: torch.Tensor,
    frame: torch.Tensor,
    rows: int,
    cols: int,
    grid: list[int],
    activations: str,
    transposed: bool,
) -> torch.Tensor:
    width, wide = (rows, cols) if transposed else (cols, rows)
    _check(x, frame, width)
    x, flat = x.detach().resolve_neg(), math.prod(x.shape[:-1])
    if not x.is_cpu:
        weight = decoded(frame, rows, cols, grid, x.dtype)
        return x @ (weight if transposed else weight.T)
    shape = (*x.shape[:-1], wide)
    if flat <= FEW and x.dtype is not torch.float64 and not transposed:
        out = torch.empty((flat, rows), dtype=torch.float32, device="cpu")
        array = x.to(torch.float32).reshape(flat, cols).contiguous().numpy()
        _native.packed_linear(frame.numpy(), rows, cols, array, out.numpy(), activations)
        return out.view(shape).to(x.dtype)
    inputs = (x.to(torch.float32) if x.dtype is torch.float16 else x).reshape(flat, width)
    # Sums over tiles of products of bfloat16 are of float32.
    kind = torch.promote_types(inputs.dtype, torch.float32) if transposed else inputs.dtype
    out = (torch.zeros if transposed else torch.empty)((flat, wide), dtype=kind, device="cpu")
    with torch.autocast("cpu", enabled=False):
        for start, tile in _tiles(frame, rows, cols, inputs.dtype):
            if transposed:
                out += inputs[:, start : start + len(tile)] @ tile
            else:
                torch.mm(inputs, tile.T, out=out[:, start : start + len(tile)])
    return out.view(shape).to(x.dtype)


def _rows(
    frame: torch.Tensor,
    indices: torch.Tensor | None,
    rows: int,
    cols: int,
    grid: list[int],
    dtype: torch.dtype,
) -> torch.Tensor:
    _check_indices(indices, frame)
    if not frame.is_cpu:
        every = decoded(frame, rows, cols, grid, dtype)
        return every if indices is None else torch.nn.functional.embedding(indices, every)
    shape = (rows, cols) if indices is None else (*indices.shape, cols)
    kind = torch.bfloat16 if dtype is torch.bfloat16 else torch.float32
    out = torch.empty(shape, dtype=kind, device="cpu")
    if indices is None:
        _native.packed_rows(frame.numpy(), cols, 0, rows, array_of(out))
    else:
        # numpy's arrays of one column of a batch are not contiguous, as in ``ids[:, -1:]``.
        wanted = indices.to(torch.int64).reshape(-1).contiguous()
        _native.packed_take(frame.numpy(), cols, wanted.numpy(), array_of(out.view(-1, cols)))
    return out.to(dtype)


def _check_indices(indices: torch.Tensor | None, frame: torch.Tensor) -> None:
    if indices is None:
        return
    dtype, message = indices.dtype, "indices must have dtype torch.int64 or int32, got {}"
    require(dtype in (torch.int64, torch.int32), message, dtype, kind=TypeError)
    _check_device("indices are", indices, frame)


def _tiles(
    frame: torch.Tensor, rows: int, cols: int, dtype: torch.dtype
) -> Iterator[tuple[int, torch.Tensor]]:
    """Yield tiles of the weights, with their starts, all in the same memory."""
    kind = dtype if dtype is torch.bfloat16 else torch.float32
    space = torch.empty((min(TILE, rows), cols), dtype=kind, device="cpu")
    data = frame.numpy()
    for start in range(0, rows, TILE):
        tile = space[: min(TILE, rows - start)]
        _native.packed_rows(data, cols, start, len(tile), array_of(tile))
        yield start, tile.to(dtype)


def decoded(
    frame: torch.Tensor, rows: int, cols: int, grid: Sequence[int], dtype: torch.dtype
) -> torch.Tensor:
    """Decode a frame with torch's operators, on its device, to the core's values, rounded."""
    bits, block, exponent = grid
    section = frame[_HEADER + _PROLOGUE :]
    words, codes = section.tensor_split([4 * -(-rows * cols // block)])
    halves = words.view(torch.float16).view(-1, 2)
    values = cells.decoded(halves, codes, rows * cols, (bits, block, exponent), dtype)
    return values.view(rows, cols)


def grids(frame: torch.Tensor, blocks: int, exponent: int) -> torch.Tensor:
    """Return steps and bases of a frame, float32 of shape (2, blocks)."""
    words = frame[_HEADER + _PROLOGUE :][: 4 * blocks].view(torch.float16)
    return (words.view(-1, 2).to(torch.float32) * 2.0**-exponent).T


def _fake_linear(
    x: torch.Tensor, frame: torch.Tensor, rows: int, cols: int, *how: Any
) -> torch.Tensor:
    width, wide = (rows, cols) if how[-1] else (cols, rows)  # transposed
    _check(x, frame, width)
    return x.new_empty((*x.shape[:-1], wide))


def _fake_rows(
    frame: torch.Tensor, indices: torch.Tensor | None, rows: int, cols: int, *how: Any
) -> torch.Tensor:
    _check_indices(indices, frame)
    shape = (rows,) if indices is None else indices.shape
    return frame.new_empty((*shape, cols), dtype=how[-1])


class _Product(torch.autograd.Function):
    """``packed_linear`` in eager mode, with derivatives in forward mode and torch.func.

    The derivative registered for the operator has no place for them: without this, forward mode
    takes the product for a constant, and says nothing.
    """

    @staticmethod
    def forward(*arguments: Any) -> Any:
        return torch.ops.gradwire.packed_linear(*arguments)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: object) -> None:
        _, frame, *of, _, transposed = inputs
        ctx.save_for_backward(frame)
        ctx.save_for_forward(frame)
        ctx.of, ctx.transposed = of, transposed

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        (frame,) = ctx.saved_tensors
        of_x = product(gradient, frame, *ctx.of, "float32", not ctx.transposed)
        return of_x, None, None, None, None, None, None

    @staticmethod
    def jvp(ctx: Any, tangent: torch.Tensor, *_: object) -> torch.Tensor:
        (frame,) = ctx.saved_tensors
        return product(tangent, frame, *ctx.of, "float32", ctx.transposed)

    @staticmethod
    def vmap(_: Any, dims: Any, x: torch.Tensor, *of: Any) -> tuple[torch.Tensor, int]:
        return product(x.movedim(dims[0], 0), *of), 0


def product(x: torch.Tensor, *of: Any) -> torch.Tensor:
    """Return ``packed_linear`` of these arguments; what records graphs gets the operator itself."""
    run = torch.ops.gradwire.packed_linear if in_graph() else _Product.apply
    y: torch.Tensor = run(x, *of)
    return y


def in_graph() -> bool:
    """Tell whether a graph is being recorded, which holds operators and plain tensors only."""
    return torch.compiler.is_compiling() or bool(torch._C._get_tracing_state())


def derive(name: str, function: type[torch.autograd.Function]) -> None:
    """Register the derivative of an operator: that of the function that runs it in eager mode."""
    keep, run = function.setup_context, f"gradwire::{name}"
    torch.library.register_autograd(run, function.backward, setup_context=keep, lib=ops.LIBRARY)


def _rows_of_batches(_: Any, dims: Any, frame: torch.Tensor, *of: Any) -> tuple[torch.Tensor, int]:
    indices, *rest = of
    return torch.ops.gradwire.packed_rows(frame, indices.movedim(dims[1], 0), *rest), 0


ops.register(
    "packed_linear(Tensor x, Tensor frame, int rows, int cols, int[] grid, str activations, "
    "bool transposed) -> Tensor",
    _linear,
    _fake_linear,
)
derive("packed_linear", _Product)
ops.register(
    "packed_rows(Tensor frame, Tensor? indices, int rows, int cols, int[] grid, ScalarType dtype) "
    "-> Tensor",
    _rows,
    _fake_rows,
)
if hasattr(torch.library, "register_vmap"):  # torch 2.5; before, rows are looked up one by one
    torch.library.register_vmap("gradwire::packed_rows", _rows_of_batches, lib=ops.LIBRARY)
