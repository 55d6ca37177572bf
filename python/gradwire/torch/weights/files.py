"""Models in files: packed weights are written as packed bytes, and loading is all or nothing."""

import dataclasses
import os
from collections.abc import Iterator, Mapping
from typing import Any, get_args

import torch
from torch import nn

from gradwire import _validate, weights
from gradwire.torch.weights.modules import Activations
from gradwire.torch.weights.slots import Slot, put, slots_of
from gradwire.torch.weights.weight import Packed, PackedWeight, name_of, packed_name

_SHOWN = 20
"""Differences that an error lists."""


def save(model: nn.Module, path: str | os.PathLike[str]) -> None:
    """Write a model to a safetensors file: packed weights as packed bytes, others unchanged.

    Parameters
    ----------
    model : torch.nn.Module
        Its parameters and persistent buffers are written, tied ones once, by their first names. A
        parameter that was decoded from packed bytes is written as these bytes if it still has their
        values, otherwise uncompressed.
    path : path-like
        A temporary file in the same folder is written first, then renamed.

    Raises
    ------
    TypeError
        A tensor is sparse or of a subclass, or a module has extra state, which is not a tensor.
    ValueError
        A tensor is on meta, and has no values.
    OSError
        The file cannot be written; what was there is as before.
    """
    inner = unwrapped(model)
    check_extra_state(inner)
    weights.save(path, {slot.name: _saved(slot) for slot in slots_of(inner)})


def unwrapped(model: nn.Module) -> nn.Module:
    """Return the model inside a `torch.compile` wrapper; return any other model unchanged."""
    inner: nn.Module = getattr(model, "_orig_mod", model)
    return inner


def check_extra_state(model: nn.Module) -> None:
    """Raise a TypeError if a module has state that is not a tensor."""
    for name, module in model.named_modules():
        if type(module).get_extra_state is not nn.Module.get_extra_state:
            raise TypeError(f"module {name!r} has extra state, which a file of tensors cannot hold")


def _saved(slot: Slot) -> Any:
    value = slot.value
    if isinstance(value, PackedWeight):
        return dataclasses.replace(value.packed, dtype=packed_name(slot.dtype))
    _check(slot)
    if (packed := slot.kept()) is not None:
        return dataclasses.replace(packed, dtype=packed_name(slot.dtype))
    assert isinstance(value, torch.Tensor)
    return host(value, slot.name)


def dense(slot: Slot) -> Any:
    """Return the array of a tensor that is not packed."""
    value = slot.value
    if isinstance(value, PackedWeight):
        raise TypeError(f"{slot.name!r} is packed: checkpoints are for models in training")
    _check(slot)
    return host(value, slot.name)


def _check(slot: Slot) -> None:
    value = slot.value
    if type(value) not in (nn.Parameter, torch.Tensor, nn.Buffer):
        raise TypeError(
            f"{slot.name!r} is a {type(value).__name__}: save a model with plain, unsharded tensors"
        )


def host(value: torch.Tensor, name: str) -> Any:
    """Return the array of a tensor; on the CPU both share memory."""
    if value.layout is not torch.strided:
        raise TypeError(f"{name!r} must be dense, got layout {value.layout}")
    if value.is_meta:
        raise ValueError(f"{name!r} is on meta: it has no values")
    there = value.detach().cpu().contiguous()
    if there.dtype is torch.bfloat16:
        return there.view(torch.uint16).numpy().view(weights.header.dtype_named("BF16"))
    return there.numpy()


def load(
    path: str | os.PathLike[str],
    model: nn.Module,
    bits: int | None = None,
    activations: Activations = "float32",
) -> nn.Module:
    """Load a file into a model, which is changed in place: all of it, or nothing.

    Packed weights of linear layers and embeddings stay packed, and are read from the file's pages
    as they are used: the modules become `PackedLinear` and `PackedEmbedding`, as by `pack`. Other
    packed tensors are decoded. A file without packed tensors is loaded as it is.

    Parameters
    ----------
    path : path-like
        A file of `save`, `gradwire.weights.save`, or any safetensors file.
    model : torch.nn.Module
        A model with the names, shapes and dtypes of the file; its tensors may be on any device.
        Tensors on meta are created on the CPU, so that ``with torch.device("meta"): model =
        Model()`` avoids initializing weights that are replaced. It may already be packed.
    bits : int, optional
        Bits to read of tensors that have further ones, such as 4 of 4 + 4: the others are not read.
        By default all.
    activations : {"float32", "int8"}
        Of `PackedLinear`.

    Returns
    -------
    torch.nn.Module
        ``model``.

    Raises
    ------
    GradwireError
        A packed tensor is corrupt; the message names it.
    ValueError
        The file and the model differ, in names, shapes or dtypes: all differences are listed. No
        tensor has this number of bits, or one with further bits does not. ``activations`` is
        invalid.
    OSError
        The file cannot be read.
    """
    _validate.choice("activations", activations, get_args(Activations))
    inner = unwrapped(model)
    slots = slots_of(inner)
    with weights.open(path) as file:
        found = {slot: [name for name in slot.names if name in file] for slot in slots}
        if differences := [*differences_of(inner, found, file)]:
            raise ValueError(listed(path, differences))
        values = {slot: file[names[0]] for slot, names in found.items()}
    packed = {slot: each for slot, each in values.items() if isinstance(each, Packed)}
    if bits is not None:
        packed = _kept(packed, bits)
    dense = {slot: tensor(each) for slot, each in values.items() if slot not in packed}
    put(packed, activations)
    for slot, value in dense.items():
        slot.fill(value)
    return model


def _kept(packed: Mapping[Slot, Packed], bits: int) -> dict[Slot, Packed]:
    """Return tensors in fewer bits; those without further bits are unchanged."""
    held = sorted({n for each in packed.values() for n in (each.first_bits, each.bits)})
    if isinstance(bits, bool) or bits not in held:
        raise ValueError(f"bits must be one of {held}, which the file holds, got {bits!r}")
    kept = {}
    for slot, each in packed.items():
        try:
            kept[slot] = each.keep(bits) if each.more else each
        except ValueError as error:
            raise ValueError(f"{slot.name!r}: {error}") from None
    return kept


def differences_of(
    model: nn.Module, found: Mapping[Slot, list[str]], file: Mapping[str, Any]
) -> Iterator[str]:
    """Yield the differences between a model and a file, for tensors of these names."""
    yield from _lost(model)
    yield from _unknown(file, [*found])
    for slot, names in found.items():
        yield from _differences(slot, names, file)


def _unknown(file: Mapping[str, Any], slots: list[Slot]) -> Iterator[str]:
    known = {name for slot in slots for name in slot.names}
    yield from (f"{name!r} is in the file only" for name in file if name not in known)


def _lost(model: nn.Module) -> Iterator[str]:
    for prefix, module in model.named_modules():
        for name in module._non_persistent_buffers_set:
            buffer = module._buffers.get(name)
            if buffer is not None and buffer.is_meta:
                full = f"{prefix}.{name}" if prefix else name
                yield (
                    f"{full!r} is on meta and not saved: make the model, or this buffer, on the CPU"
                )


def _differences(slot: Slot, names: list[str], file: Mapping[str, Any]) -> Iterator[str]:
    if not names:
        yield f"{slot.name!r} is in the model only"
        return
    value = file[names[0]]
    if isinstance(slot.value, PackedWeight) and not isinstance(value, Packed):
        yield f"{slot.name!r} is packed in the model, but dense in the file"
    shape = tuple(value.shape)
    dtype = (packed_name if isinstance(value, Packed) else name_of)(slot.dtype)
    if shape != slot.shape:
        yield f"{slot.name!r} has shape {slot.shape} in the model, and {shape} in the file"
    if str(value.dtype) != dtype:
        yield f"{slot.name!r} is {dtype} in the model, and {value.dtype} in the file"
    for other in names[1:]:
        if not _same(value, file[other]):
            yield f"{names[0]!r} and {other!r} are tied in the model, and differ in the file"


def _same(a: Any, b: Any) -> bool:
    if isinstance(a, Packed) or isinstance(b, Packed):
        return isinstance(a, Packed) and isinstance(b, Packed) and a.frame == b.frame
    return bool(a.shape == b.shape and a.tobytes() == b.tobytes())


def listed(path: object, differences: list[str]) -> str:
    """Return an error message with the first of many differences."""
    more = len(differences) - _SHOWN
    lines = differences[:_SHOWN] + ([f"and {more} more"] if more > 0 else [])
    return f"{str(path)!r} does not fit the model, which is unchanged:\n  " + "\n  ".join(lines)


def tensor(array: Any) -> torch.Tensor:
    """Return a copy: tensors of a model may be written to, the file's memory must not."""
    if array.dtype.name == "bfloat16":
        return torch.from_numpy(array.view("u2").copy()).view(torch.bfloat16)
    return torch.from_numpy(array.copy())
