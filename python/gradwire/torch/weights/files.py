"""Models in files: packed weights are written as packed bytes, and loading is all or nothing."""

import dataclasses
import itertools
import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import get_args

import torch
from torch import nn

from gradwire import _validate, weights
from gradwire._validate import require
from gradwire.errors import CorruptFileError, GradwireError
from gradwire.torch.tensors import bytes_of
from gradwire.torch.weights.modules import Activations
from gradwire.torch.weights.slots import Slot, check_dense, put, slots_of, unwrapped
from gradwire.torch.weights.weight import (
    Packed,
    PackedWeight,
    as_tensor,
    from_bytes,
    name_of,
    packed_name,
)
from gradwire.weights import RawTensor
from gradwire.weights.header import DTYPE_NAMES, MORE, PACKED

_SHOWN = 20
"""Differences that an error lists."""

_NAMES = {**DTYPE_NAMES, "F4": "float4_e2m1fn_x2"}
DTYPES: dict[str, torch.dtype] = {
    name: getattr(torch, dtype) for name, dtype in _NAMES.items() if hasattr(torch, dtype)
}
"""Torch's dtypes by their names in files; older releases lack the last ones."""

_FRAME = b"GWF"


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
    weights.save(path, {slot.name: _to_save(slot) for slot in slots_of(inner)})


def check_extra_state(model: nn.Module) -> None:
    """Raise a TypeError if a module has state that is not a tensor."""
    for name, module in model.named_modules():
        plain = type(module).get_extra_state is nn.Module.get_extra_state
        message = "module {!r} has extra state, which a file of tensors cannot hold"
        require(plain, message, name, kind=TypeError)


def _to_save(slot: Slot) -> Packed | RawTensor:
    packed = slot.value.packed if isinstance(slot.value, PackedWeight) else None
    if packed is None:
        slot.plain()
        packed = slot.source()
    if packed is None:
        return dense(slot)
    return dataclasses.replace(packed, dtype=packed_name(slot.dtype))


def dense(slot: Slot) -> RawTensor:
    trained = not isinstance(slot.value, PackedWeight)
    message = "{!r} is packed: checkpoints are for models in training"
    require(trained, message, slot.name, kind=TypeError)
    return raw_of(slot.plain(), slot.name)


def raw_of(value: torch.Tensor, name: str) -> RawTensor:
    check_dense(value, name)
    names = [name for name, dtype in DTYPES.items() if dtype is value.dtype]
    message = "{!r} is of {}, which a safetensors file cannot hold"
    require(names, message, name, value.dtype, kind=TypeError)
    return RawTensor(names[0], _shape_of(value.shape, names[0]), bytes_of(value).numpy())


def _shape_of(shape: Sequence[int], name: str) -> tuple[int, ...]:
    """Return the shape of a tensor in files: of F4, torch counts pairs of entries."""
    *outer, last = shape or (1,)
    return (*outer, 2 * last) if name == "F4" else tuple(shape)


def load(
    path: str | os.PathLike[str],
    model: nn.Module,
    bits: int | None = None,
    activations: Activations = "float32",
    *,
    mapped: bool = True,
) -> nn.Module:
    """Load a file into a model, which is changed in place: all of it, or nothing.

    Packed weights of linear layers and embeddings stay packed: the modules become `PackedLinear`
    and `PackedEmbedding`, as by `pack`. Other packed tensors are decoded. A file without packed
    tensors is loaded as it is. What `save_pretrained` or a state dict wrote of a packed model is
    recognized by its bytes.

    Parameters
    ----------
    path : path-like
        A file of `save`, `gradwire.weights.save`, or any safetensors file; of a sharded checkpoint,
        its index or its folder.
    model : torch.nn.Module
        A model with the names, shapes and dtypes of the file; its tensors may be on any device.
        Tensors on meta are created on the CPU, so that ``with torch.device("meta"): model =
        Model()`` avoids initializing weights that are replaced. It may already be packed.
    bits : int, optional
        Bits to read of tensors that have further ones, such as 4 of 4 + 4: the others are not read.
        By default all.
    activations : {"float32", "int8"}
        Of `PackedLinear`.
    mapped : bool
        Read packed weights from the file's pages as they are used. The file must then not be
        overwritten in place, which changes the model, or truncated; replacing it, as `save` does,
        is safe. With False, packed bytes are copied into memory.

    Returns
    -------
    torch.nn.Module
        ``model``.

    Raises
    ------
    GradwireError
        A packed tensor is corrupt; the message names it.
    ValueError
        The file and the model differ, in names, shapes or dtypes: all differences are listed, and
        tensors that cannot be written to, such as sparse or expanded ones. No tensor has this
        number of bits, or one with further bits does not. ``activations`` is invalid. The file is
        of another format, such as a pickle.
    OSError
        The file cannot be read.
    """
    _validate.choice("activations", activations, get_args(Activations))
    inner = unwrapped(model)
    with weights.open(path, mapped=mapped) as file:
        tensors = Tensors(file)
        names = tensors.names_of(slots_of(inner))
        check_fits(path, differences_of(inner, names, tensors))
        values = {slot: tensors[names[slot][0]] for slot in names}
    packed = {slot: value for slot, value in values.items() if isinstance(value, Packed)}
    if bits is not None:
        packed = _in_bits(packed, bits)
    dense = {slot: tensor(value) for slot, value in values.items() if isinstance(value, RawTensor)}
    put(packed, activations, dense)
    return model


class Tensors(Mapping[str, Packed | RawTensor]):
    """The tensors of a file whose names have a prefix, which is removed; each is read once."""

    def __init__(self, file: weights.File | weights.Shards, prefix: str = "") -> None:
        self._file, self._prefix = file, prefix
        self._read: dict[str, Packed | RawTensor] = {}
        self._further: set[str] = set()

    def __getitem__(self, name: str) -> Packed | RawTensor:
        if name not in self._read:
            full = self._prefix + name
            value = self._file[full] if self._file.kind(full) is None else self._file.raw(full)
            assert isinstance(value, Packed | RawTensor)
            self._read[name] = value
        return self._read[name]

    def __iter__(self) -> Iterator[str]:
        size = len(self._prefix)
        names = (name[size:] for name in self._file if name.startswith(self._prefix))
        return (name for name in names if name not in self._further)

    def __len__(self) -> int:
        return sum(1 for _ in self)

    def __contains__(self, name: object) -> bool:
        return f"{self._prefix}{name}" in self._file and name not in self._further

    def names_of(self, slots: list[Slot]) -> dict[Slot, list[str]]:
        """Return the names that the file has of each tensor of a model."""
        names = {slot: [name for name in slot.names if name in self] for slot in slots}
        for slot in slots:
            for name in names[slot]:
                self._recognize(name, slot)
        return names

    def _recognize(self, name: str, slot: Slot) -> None:
        """Take bytes that are a frame, as of a state dict, with the model's shape and dtype."""
        kind = self._file.kind(self._prefix + name)
        if kind is None or kind[0] != PACKED or slot.flaw() or not slot.dtype.is_floating_point:
            return
        frame, further = self[name], self.get(name + MORE)
        assert isinstance(frame, RawTensor)
        if bytes(frame.data[:3]) != _FRAME:
            return
        codes = further.data if isinstance(further, RawTensor) else None
        try:
            self._read[name] = from_bytes(slot.shape, packed_name(slot.dtype), frame.data, codes)
        except GradwireError as error:
            raise CorruptFileError(str(error), name) from None
        if codes is not None:
            self._further.add(name + MORE)


def _in_bits(packed: Mapping[Slot, Packed], bits: int) -> dict[Slot, Packed]:
    """Return tensors in fewer bits; those without further bits are unchanged."""
    known = sorted({n for tensor in packed.values() for n in (tensor.first_bits, tensor.bits)})
    possible = bits in known and not isinstance(bits, bool)
    require(possible, "bits must be one of {}, which the file holds, got {!r}", known, bits)
    for slot, tensor in packed.items():
        fits = not tensor.more or bits in (tensor.first_bits, tensor.bits)
        message = "{!r}: bits must be {} and {}, which the tensor holds, got {!r}"
        require(fits, message, slot.name, tensor.first_bits, tensor.bits, bits)
    return {slot: tensor.keep(bits) if tensor.more else tensor for slot, tensor in packed.items()}


def differences_of(
    model: nn.Module, names: Mapping[Slot, list[str]], file: Tensors
) -> Iterator[str]:
    """Yield the differences between a model and a file, for tensors of these names."""
    for prefix, module in model.named_modules():
        for name in module._non_persistent_buffers_set:
            buffer = module._buffers.get(name)
            if buffer is not None and buffer.is_meta:
                full = f"{prefix}.{name}" if prefix else name
                yield (
                    f"{full!r} is on meta and not saved: make the model, or this buffer, on the CPU"
                )
    known = {name for slot in names for name in slot.names}
    yield from (f"{name!r} is in the file only" for name in file if name not in known)
    for slot in names:
        yield from _differences(slot, names[slot], file)


def _differences(slot: Slot, names: list[str], file: Tensors) -> Iterator[str]:
    if not names:
        yield f"{slot.name!r} is in the model only"
        return
    value = file[names[0]]
    if isinstance(value, RawTensor) and isinstance(slot.value, PackedWeight):
        yield f"{slot.name!r} is packed in the model, but dense in the file"
    if flaw := slot.flaw():
        yield f"{slot.name!r} {flaw}"
        return
    shape = slot.shape
    if isinstance(value, Packed):
        expected, dtype = packed_name(slot.dtype), value.dtype
    else:
        expected, dtype = name_of(slot.dtype), _NAMES.get(value.dtype, value.dtype)
        shape = _shape_of(shape, value.dtype)
    if value.shape != shape:
        yield f"{slot.name!r} has shape {slot.shape} in the model, and {value.shape} in the file"
    if dtype != expected:
        yield f"{slot.name!r} is {expected} in the model, and {dtype} in the file"
    for other in names[1:]:
        if _content(value) != _content(file[other]):
            yield f"{names[0]!r} and {other!r} are tied in the model, and differ in the file"


def _content(value: Packed | RawTensor) -> object:
    if isinstance(value, Packed):
        return bytes(value.frame)
    return value.dtype, value.shape, value.data.tobytes()


def check_fits(path: str | os.PathLike[str], differences: Iterable[str]) -> None:
    """Raise a ValueError with the first differences, if a file and a model have any."""
    first = [*itertools.islice(every := iter(differences), _SHOWN)]
    more = sum(1 for _ in every)
    lines = first + ([f"and {more} more"] if more else [])
    if re.search(r"-\d{5}-of-\d{5}\.safetensors$", os.fspath(path)):
        lines.insert(0, "it is one shard of several: load their folder, or their index")
    message = "{!r} does not fit the model, which is unchanged:\n  {}"
    require(not first, message, str(path), "\n  ".join(lines))


def dense_of(value: Packed | RawTensor, name: str) -> torch.Tensor:
    """Return a tensor that must not be packed, and of a dtype that torch has."""
    if isinstance(value, RawTensor) and value.dtype in DTYPES:
        return tensor(value)
    raise CorruptFileError(f"it is {value!r:.100}, which no checkpoint holds", name)


def tensor(raw: RawTensor) -> torch.Tensor:
    """Return a tensor of a dtype that torch has; it shares the file's memory, so copy from it."""
    dtype, shape = DTYPES[raw.dtype], raw.shape
    if raw.dtype == "F4":
        shape = (*shape[:-1], shape[-1] // 2)
    if not raw.nbytes:
        return torch.empty(shape, dtype=dtype)
    flat = as_tensor(raw.data)
    if flat.data_ptr() % dtype.itemsize:
        flat = flat.clone()
    return flat.view(dtype).reshape(shape)
