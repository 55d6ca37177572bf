"""What a model consists of: its tensors with all of their names, dense or packed."""

import dataclasses
from collections.abc import Iterator, Mapping

import torch
from torch import nn

from gradwire.errors import CorruptFileError, CorruptFrameError
from gradwire.torch.weights.modules import Activations, PackedModule, convert, takes_packed
from gradwire.torch.weights.rounded import release
from gradwire.torch.weights.weight import Packed, PackedWeight

KEPT = "_packed_parameters"
"""Attribute of a module: the packed tensors that its dense parameters were decoded from."""


@dataclasses.dataclass(eq=False)
class Slot:
    """A tensor of a model, under every name that it has, and where it is held."""

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
        """Where the values are, or are to be: on the CPU for those on meta."""
        tensor = self.value if isinstance(self.value, torch.Tensor) else self.value.frame
        return torch.device("cpu") if tensor.is_meta else tensor.device

    @property
    def nbytes(self) -> int:
        """As it is held."""
        value = self.value
        return int(value.nbytes if isinstance(value, torch.Tensor) else value.packed.nbytes)

    @property
    def reads_packed(self) -> bool:
        """Whether all modules that hold the tensor can read it packed."""
        return isinstance(self.value, PackedWeight) or all(
            attribute == "weight" and takes_packed(module) for module, attribute in self.owners
        )

    @property
    def held(self) -> str:
        """By what it is held when it is packed: "linear", "embedding", or "decoded"."""
        ((module, _), *_) = self.owners
        linear = "linear" if isinstance(module, nn.Linear) else "embedding"
        return linear if self.reads_packed else "decoded"

    def fill(self, value: torch.Tensor) -> None:
        """Give a dense tensor its values; one on meta, which has no memory, is replaced."""
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
        """Return the packed tensor that a parameter was decoded from, if it has its values yet."""
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
        """Remember what the values of a parameter were decoded from."""
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
        yield "weight", module._packed
    for name, parameter in module._parameters.items():
        if parameter is not None:
            yield name, parameter
    for name, buffer in module._buffers.items():
        if buffer is not None and name not in module._non_persistent_buffers_set:
            yield name, buffer


def put(found: Mapping[Slot, Packed], activations: Activations = "float32") -> None:
    """Put packed weights in the places of tensors: as bytes where modules read them, else decoded.

    Whatever can fail comes before anything is changed.
    """
    made = {slot: _held(slot, packed) for slot, packed in found.items()}
    values = {
        slot: weight.decoded(slot.dtype) for slot, weight in made.items() if not slot.reads_packed
    }
    for slot, weight in made.items():
        dtype = slot.dtype
        for module, attribute in slot.owners:
            release(module, attribute)
        if slot in values:
            slot.fill(values[slot])
            slot.keep(weight.packed)
        else:
            for module, _ in slot.owners:
                convert(module, weight, activations, dtype)


def _held(slot: Slot, packed: Packed) -> PackedWeight:
    try:
        return PackedWeight(packed, slot.device)
    except CorruptFrameError as error:  # of further codes, which nobody read before
        raise CorruptFileError(str(error), slot.name) from None
