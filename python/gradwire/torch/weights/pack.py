"""Packs a model in memory."""

import dataclasses
import math
from collections.abc import Mapping, Sequence

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from gradwire import _rules, _validate, weights
from gradwire.quantize import Affine
from gradwire.torch.weights.report import PackedTensor, PackReport
from gradwire.torch.weights.slots import Slot, put, slots_of
from gradwire.torch.weights.weight import Packed, PackedWeight, packed_name

_FLOATS = (torch.float32, torch.float64, torch.float16, torch.bfloat16)


def pack(
    model: nn.Module,
    rules: Mapping[str, Affine | None],
    more: Sequence[int] = (),
    *,
    min_ndim: int = 2,
) -> PackReport:
    """Pack the weights of a model, which is changed in place.

    Linear layers become `PackedLinear`, embeddings `PackedEmbedding`, where they are exactly
    `torch.nn.Linear` and `torch.nn.Embedding` without ``max_norm``. Other parameters that a rule
    names keep the values that their packed bytes decode to, and are saved as those bytes for as
    long as nothing changes them. Weights that are tied are packed once, and stay tied.

    Make optimizers afterwards: packed weights are no parameters.

    Parameters
    ----------
    model : torch.nn.Module
        On any device. Not one that is wrapped for training: pack first.
    rules : mapping of str to (Affine or None)
        How to pack parameters by name: keys are names as in ``model.named_parameters()``, or
        patterns with ``*``, ``?`` and ``[abc]``; the first that matches counts, any name of a tied
        weight being enough. What has None, or what no key matches, is left as it is, and so is
        what holds no floating-point numbers.
    more : sequence of int
        Further bits, as (4,), which `load` may leave out; see `gradwire.weights.pack`.
    min_ndim : int
        Parameters with fewer dimensions are left as they are: by default biases and norms.

    Returns
    -------
    PackReport
        Names, shapes, bits, bytes and errors. ``print`` shows a table.

    Raises
    ------
    NonFiniteError
        A weight has NaN or infinite entries.
    TypeError
        ``rules`` is no mapping of names to `Affine` or None; the model is wrapped for training; a
        weight is sparse, or of a class of its own.
    ValueError
        A rule names no parameter, or one that is packed already; a weight has no values; the bits
        do not go together.

    Notes
    -----
    All weights are packed before the first is replaced: after an error the model is as it was.
    """
    inner = getattr(model, "_orig_mod", model)  # what torch.compile returns
    if any(isinstance(each, DistributedDataParallel) for each in inner.modules()):
        raise TypeError("pack() takes a model that is not wrapped: pack it, then wrap it")
    _check(rules)
    min_ndim = _validate.integer("min_ndim", min_ndim, low=0)
    buffers = {id(each) for each in inner.buffers()}
    every = [slot for slot in slots_of(inner) if id(slot.value) not in buffers]
    _rules.check(rules, [name for slot in every for name in slot.names])
    chosen = [(slot, _rules.first(rules, *slot.names)) for slot in every]
    made = [
        (slot, _packed(slot, how, more))
        for slot, how in chosen
        if how is not None and _is_packable(slot, min_ndim)
    ]
    rows = tuple(_row(slot, packed) for slot, packed in made)
    left = [slot for slot in every if slot not in dict(made)]
    report = PackReport(rows, tuple(slot.name for slot in left), sum(slot.nbytes for slot in left))
    put(dict(made))
    return report


def _check(rules: object) -> None:
    if not isinstance(rules, Mapping):
        raise TypeError(
            f"rules must be a mapping of names to Affine or None, got {rules!r}: pass "
            '{"*": gradwire.quantize.Affine(4)} for all weights'
        )
    for pattern, how in rules.items():
        if how is not None and not isinstance(how, Affine):
            raise TypeError(
                f"rules[{pattern!r}] must be a gradwire.quantize.Affine or None, got {how!r}"
            )


def _is_packable(slot: Slot, min_ndim: int) -> bool:
    """Tell whether a parameter that a rule names is packed; raise if it is packed already."""
    if isinstance(slot.value, PackedWeight) or slot.kept() is not None:
        raise ValueError(f"{slot.name!r} is packed already: give it None in the rules")
    return slot.dtype in _FLOATS and len(slot.shape) >= min_ndim


def _packed(slot: Slot, how: Affine, more: Sequence[int]) -> Packed:
    tensor = slot.value
    if isinstance(tensor, PackedWeight) or type(tensor) not in (nn.Parameter, torch.Tensor):
        raise TypeError(
            f"parameter {slot.name!r} is a {type(tensor).__name__}: pack a model of plain tensors, "
            "then wrap it"
        )
    if tensor.layout is not torch.strided:
        raise TypeError(f"parameter {slot.name!r} must be dense, got layout {tensor.layout}")
    if tensor.is_meta:
        raise ValueError(f"parameter {slot.name!r} is on meta: it has no values")
    wide = torch.float64 if tensor.dtype is torch.float64 else torch.float32
    array = tensor.detach().to("cpu", wide).contiguous().numpy()
    return dataclasses.replace(
        weights.pack(array, how, more, name=slot.name), dtype=packed_name(slot.dtype)
    )


def _row(slot: Slot, packed: Packed) -> PackedTensor:
    dense = math.prod(slot.shape) * slot.dtype.itemsize
    bits, nbytes, error = packed.bits, packed.nbytes, packed.error() or 0.0
    return PackedTensor(slot.name, slot.shape, bits, dense, nbytes, error, slot.held)
