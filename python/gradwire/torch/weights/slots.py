"""The tensors of a model, uncompressed or packed, with all of their names."""

import dataclasses
from collections.abc import Iterator, Mapping

import torch
from torch import nn

from gradwire.errors import CorruptFileError, CorruptFrameError
from gradwire.torch.weights.modules import Activations, PackedModule, convert, reader_of
from gradwire.torch.weights.rounded import release
from gradwire.torch.weights.weight import Packed, PackedWeight

KEPT = "_packed_parameters"
"""Attribute of a module: the packed tensors that its dense parameters were decoded from."""


@dataclasses.dataclass(eq=False)
class Slot:
    """A tensor of a model, with all of its names, and the modules that hold it."""

    value: torch.Tensor | PackedWeight
    names: list[str] = dataclasses.field(default_factory=list)
    owners: dict[tuple[nn.Module, str], None] = dataclasses.field(default_factory=dict)

    @property
    def name(self) -> str:
        """The first name, as in ``model.named_parameters()``."""
        return self.names[0]

    @property
    def shape(self) -> tuple[int, ...]:
        """Of the values."""
        value = self.value
        return tuple(value.shape if isinstance(value, torch.Tensor) else value.packed.shape)

    @property
    def dtype(self) -> torch.dtype:
        """Of the values."""
        if isinstance(self.value, torch.Tensor):
            return self.value.dtype
        ((module, _), *_) = self.owners
        assert isinstance(module, PackedModule)
        return module._dtype

    @property
    def device(self) -> torch.device:
        """The device of the values; the CPU for tensors on meta, where they will be."""
        tensor = self.value if isinstance(self.value, torch.Tensor) else self.value.frame
        return torch.device("cpu") if tensor.is_meta else tensor.device

    @property
    def nbytes(self) -> int:
        """Bytes in the present form."""
        value = self.value
        return int(value.nbytes if isinstance(value, torch.Tensor) else value.packed.nbytes)

    @property
    def reads_packed(self) -> bool:
        """Whether all modules that hold the tensor can read it packed."""
        return isinstance(self.value, PackedWeight) or all(
            reader_of(*owner) is not None for owner in self.owners
        )

    @property
    def held(self) -> str:
        """What reads it when packed: "linear", "embedding" or "experts"; else "decoded"."""
        ((module, attribute), *_) = self.owners
        return (self.reads_packed and reader_of(module, attribute)) or "decoded"

    def fill(self, value: torch.Tensor) -> None:
        """Set the values of a dense tensor; one on meta, which has no memory, is replaced."""
        old = self.value
        assert isinstance(old, torch.Tensor)
        if not old.is_meta:
            with torch.no_grad():
                old.copy_(value)
            return
        new = nn.Parameter(value, old.requires_grad) if isinstance(old, nn.Parameter) else value
        for module, attribute in self.owners:
            setattr(module, attribute, new)

    def kept(self) -> Packed | None:
        """Return the packed tensor from which a parameter was decoded, if it is unchanged."""
        ((module, attribute), *_) = self.owners
        packed: Packed | None = getattr(module, KEPT, {}).get(attribute)
        if packed is None:
            return None
        assert isinstance(self.value, torch.Tensor)
        if self.value.is_meta:
            return packed
        decoded = PackedWeight(packed).decoded(self.dtype)
        return packed if torch.equal(decoded, self.value.detach().cpu()) else None

    def keep(self, packed: Packed) -> None:
        """Remember the packed tensor from which a parameter was decoded."""
        for module, attribute in self.owners:
            setattr(module, KEPT, {**getattr(module, KEPT, {}), attribute: packed})


def slots_of(model: nn.Module) -> list[Slot]:
    """Return the parameters and persistent buffers of a model, in the order of its state dict."""
    found: dict[int, Slot] = {}
    for prefix, module in model.named_modules(remove_duplicate=False):
        for attribute, value in _tensors(module):
            slot = found.setdefault(id(value), Slot(value))
            slot.names.append(f"{prefix}.{attribute}" if prefix else attribute)
            slot.owners[module, attribute] = None
    return list(found.values())


def _tensors(module: nn.Module) -> Iterator[tuple[str, torch.Tensor | PackedWeight]]:
    if isinstance(module, PackedModule):
        yield from module._weights.items()
    for name, parameter in module._parameters.items():
        if parameter is not None:
            yield name, parameter
    for name, buffer in module._buffers.items():
        if buffer is not None and name not in module._non_persistent_buffers_set:
            yield name, buffer


def put(found: Mapping[Slot, Packed], activations: Activations = "float32") -> None:
    """Replace tensors by packed weights: as bytes if modules can read them, else decoded.

    Everything that can fail is done before anything changes.
    """
    made = {slot: _held(slot, packed) for slot, packed in found.items()}
    values = {
        slot: weight.decoded(slot.dtype) for slot, weight in made.items() if not slot.reads_packed
    }
    for slot in made:
        for module, attribute in slot.owners:
            release(module, attribute)
    for slot, weight in made.items():
        dtype = slot.dtype
        if slot in values:
            slot.fill(values[slot])
            slot.keep(weight.packed)
        else:
            for module, attribute in slot.owners:
                convert(module, attribute, weight, activations, dtype)


def _held(slot: Slot, packed: Packed) -> PackedWeight:
    try:
        return PackedWeight(packed, slot.device)
    except CorruptFrameError as error:  # of further codes, which nobody read before
        raise CorruptFileError(str(error), slot.name) from None
