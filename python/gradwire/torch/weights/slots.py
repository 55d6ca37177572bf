"""The tensors of a model, uncompressed or packed, with all of their names."""

import contextlib
import dataclasses
from collections.abc import Iterator, Mapping

import torch
from torch import nn

from gradwire._validate import require
from gradwire.errors import CorruptFileError, CorruptFrameError
from gradwire.torch.tensors import bytes_of
from gradwire.torch.weights.modules import Activations, PackedModule, convert, reader_of
from gradwire.torch.weights.rounded import release
from gradwire.torch.weights.weight import Packed, PackedWeight

SOURCES = "_packed_parameters"
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
        value = self.value
        return tuple(value.shape if isinstance(value, torch.Tensor) else value.packed.shape)

    @property
    def dtype(self) -> torch.dtype:
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
        value = self.value
        return int(value.nbytes if isinstance(value, torch.Tensor) else value.packed.nbytes)

    @property
    def held(self) -> str:
        """What reads it packed: "linear", "embedding" or "experts"; "decoded" if not all can."""
        readers = [reader_of(*owner) for owner in self.owners]
        return "decoded" if None in readers else str(readers[0])

    def plain(self) -> torch.Tensor:
        """Return the tensor; raise unless it is a whole one, with values."""
        value = self.value
        require(
            type(value) in (nn.Parameter, torch.Tensor),
            "{!r} is a {}: give a model with plain, unsharded tensors, and wrap it afterwards",
            *(self.name, type(value).__name__),
            kind=TypeError,
        )
        assert isinstance(value, torch.Tensor)
        check_dense(value, self.name)
        return value

    def flaw(self) -> str | None:
        """Return why no values can be written to the tensor; None if they can."""
        value = self.value
        if not isinstance(value, torch.Tensor):
            return None
        if nn.parameter.is_lazy(value):
            return "has no shape yet: call the model once, as its module is lazy"
        if value.is_meta:
            return None
        if value.layout is not torch.strided or value.is_nested:
            return f"is not dense in the model, but {value.layout}: make it dense first"
        if _overlaps(value):
            return (
                f"has entries that share memory, with strides {value.stride()}, as expand() makes "
                "them: replace it by its contiguous()"
            )
        return None

    def fill(self, value: torch.Tensor) -> None:
        """Set the values of a dense tensor; one on meta, which has no memory, is replaced."""
        old = self.value
        assert isinstance(old, torch.Tensor)
        if not old.is_meta:
            # Tensors that were made in inference mode are written to in it alone.
            with torch.inference_mode(old.is_inference()), torch.no_grad():
                old.copy_(value)
            return
        new = value.clone()
        is_parameter = isinstance(old, nn.Parameter)
        self.replace(nn.Parameter(new, old.requires_grad) if is_parameter else new)

    def replace(self, tensor: torch.Tensor) -> None:
        for module, attribute in self.owners:
            setattr(module, attribute, tensor)

    def source(self) -> Packed | None:
        """Return the packed tensor from which a parameter was decoded, if it is unchanged."""
        ((module, attribute), *_) = self.owners
        packed: Packed | None = getattr(module, SOURCES, {}).get(attribute)
        if packed is None:
            return None
        assert isinstance(self.value, torch.Tensor)
        if self.value.is_meta:
            return packed
        decoded = PackedWeight(packed).decoded(self.dtype)
        return packed if torch.equal(decoded, self.value.detach().cpu()) else None

    def set_source(self, packed: Packed) -> None:
        """Remember the packed tensor from which a parameter was decoded."""
        for module, attribute in self.owners:
            setattr(module, SOURCES, {**getattr(module, SOURCES, {}), attribute: packed})


def unwrapped(model: nn.Module) -> nn.Module:
    """Return the model inside a `torch.compile` wrapper; return any other model unchanged."""
    inner: nn.Module = getattr(model, "_orig_mod", model)
    return inner


def slots_of(model: nn.Module) -> list[Slot]:
    """Return the parameters and persistent buffers of a model, in the order of its state dict."""
    slots: dict[int, Slot] = {}
    for prefix, module in model.named_modules(remove_duplicate=False):
        for attribute, value in _tensors(module):
            slot = slots.setdefault(id(value), Slot(value))
            slot.names.append(f"{prefix}.{attribute}" if prefix else attribute)
            slot.owners[module, attribute] = None
    return list(slots.values())


def _tensors(module: nn.Module) -> Iterator[tuple[str, torch.Tensor | PackedWeight]]:
    if isinstance(module, PackedModule):
        yield from module._weights.items()
    for name, parameter in module._parameters.items():
        if parameter is not None:
            yield name, parameter
    for name, buffer in module._buffers.items():
        if buffer is not None and name not in module._non_persistent_buffers_set:
            yield name, buffer


def _overlaps(tensor: torch.Tensor) -> bool:
    """Tell whether entries share memory, as far as sizes and strides can tell."""
    reach = 0
    for stride, size in sorted(zip(tensor.stride(), tensor.shape, strict=True)):
        if size > 1 and stride <= reach:
            return tensor.numel() > 0
        reach += stride * (size - 1)
    return False


@contextlib.contextmanager
def filled(values: Mapping[Slot, torch.Tensor]) -> Iterator[None]:
    """Set the values of dense tensors; after an exception, of this or of the block, the old ones.

    Raises
    ------
    ValueError
        A tensor cannot be written to, or shares memory with one that gets other values.
    """
    before: dict[Slot, torch.Tensor] = {}
    try:
        for slot, value in values.items():
            assert isinstance(slot.value, torch.Tensor)
            old = slot.value.detach()
            before[slot] = old if old.is_meta else old.to("cpu", copy=True)
            try:
                slot.fill(value)
            except torch.cuda.OutOfMemoryError:
                raise
            except RuntimeError as error:
                raise ValueError(f"{slot.name!r} cannot be written to: {error}") from error
        _check_shared(values)
        yield
    except BaseException:
        # The latest first: of views of one memory, the first has the values that it had before.
        for slot, old in reversed(before.items()):
            assert isinstance(slot.value, torch.Tensor)
            slot.replace(slot.value) if old.is_meta else slot.fill(old)
        raise


def _check_shared(values: Mapping[Slot, torch.Tensor]) -> None:
    """Raise a ValueError if tensors in the same memory, as views of one, got different values."""
    sharing: dict[int, list[Slot]] = {}
    for slot in values:
        assert isinstance(slot.value, torch.Tensor)
        if not slot.value.is_meta and slot.value.numel():
            sharing.setdefault(slot.value.untyped_storage().data_ptr(), []).append(slot)
    for slots in sharing.values():
        for slot in slots if len(slots) > 1 else ():
            assert isinstance(slot.value, torch.Tensor)
            require(
                torch.equal(bytes_of(slot.value), bytes_of(values[slot])),
                "{!r} shares memory with {} in the model, and gets other values; the model is "
                "unchanged",
                slot.name,
                ", ".join(repr(other.name) for other in slots if other is not slot),
            )


def check_dense(tensor: torch.Tensor, name: str) -> None:
    """Raise unless a tensor has a value for each entry."""
    dense = tensor.layout is torch.strided and not tensor.is_nested
    require(dense, "{!r} must be dense, got layout {}", name, tensor.layout, kind=TypeError)
    require(not tensor.is_meta, "{!r} is on meta: it has no values", name)


def put(
    packed: Mapping[Slot, Packed],
    activations: Activations = "float32",
    dense: Mapping[Slot, torch.Tensor] | None = None,
) -> None:
    """Replace tensors by packed weights: as bytes if modules can read them, else decoded.

    With them, ``dense`` tensors get these values. All that can fail is done before the first module
    changes, and values are restored if it fails.
    """
    weights: dict[Slot, PackedWeight] = {}
    for slot, tensor in packed.items():
        try:
            weights[slot] = PackedWeight(tensor, slot.device)
        except CorruptFrameError as error:  # of further codes, which nobody read before
            raise CorruptFileError(str(error), slot.name) from None
    decoded = {
        slot: weight.decoded(slot.dtype)
        for slot, weight in weights.items()
        if isinstance(slot.value, torch.Tensor) and slot.held == "decoded"
    }
    with filled({**(dense or {}), **decoded}):
        for slot in weights:
            for module, attribute in slot.owners:
                release(module, attribute)
        for slot, weight in weights.items():
            if slot in decoded:
                slot.set_source(weight.packed)
                continue
            dtype = slot.dtype
            for module, attribute in slot.owners:
                convert(module, attribute, weight, activations, dtype)
