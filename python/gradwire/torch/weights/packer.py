"""Packs weights one by one, using a calibration of their layers' inputs."""

import dataclasses
import math
import time
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from gradwire import weights
from gradwire.quantize import Affine
from gradwire.torch.weights.calibration import Calibration
from gradwire.torch.weights.report import PackedTensor
from gradwire.torch.weights.slots import Slot
from gradwire.torch.weights.weight import Packed, PackedWeight, packed_name
from gradwire.weights import COMQ, Gram
from gradwire.weights.solve import Preparation, Solver


class Grams:
    """The Gram matrices of a calibration, by the weights of a model."""

    def __init__(self, calibration: Mapping[str, Gram] | None, slots: Sequence[Slot]) -> None:
        if calibration is not None and not isinstance(calibration, Mapping):
            raise TypeError(
                f"calibration must be a Calibration, or Gram matrices by name, got {calibration!r}"
            )
        self._calibration: Mapping[str, Gram] = {} if calibration is None else calibration
        self._names: dict[Slot, str] = {}
        self._few: set[Slot] = set()
        self._shared = (
            set(calibration.shared) if isinstance(calibration, Calibration) else set[str]()
        )
        for slot in slots:
            for name in slot.names:
                if name in self._calibration:
                    self._names[slot] = name
        if strange := set(self._calibration) - set(self._names.values()):
            raise ValueError(
                f"the calibration is for another model: this one has no weight {min(strange)!r}"
            )

    @property
    def are_sequential(self) -> bool:
        """Whether the matrices of a layer depend on how the layers before it were packed."""
        return isinstance(self._calibration, Calibration) and self._calibration.sequential

    def nearest(self, slot: Slot) -> str:
        """Return what a report says of a weight without a matrix."""
        return "nearest (shared)" if slot.name in self._shared else "nearest"

    def order(self, slots: Iterable[Slot]) -> list[Slot]:
        """Return weights in the order of their use; those without inputs come first."""
        every = list(slots)
        if not isinstance(self._calibration, Calibration):
            return every
        places = {name: i for i, name in enumerate(self._calibration.order)}
        return sorted(every, key=lambda slot: places.get(self._names.get(slot, ""), -1))

    def of(self, slot: Slot) -> Gram | None:
        """Return the matrix of a weight's layer, or None."""
        name = self._names.get(slot)
        return None if name is None else self._told(slot, self._calibration[name])

    def behind(
        self, slot: Slot, packed: Mapping[Slot, Packed]
    ) -> tuple[Gram | None, NDArray[np.float64] | None]:
        """Return the matrix after earlier weights were packed, and cross products to compensate.

        The second is the sum of products of a layer's inputs before and after, if there is one.
        """
        name = self._names.get(slot)
        if name is None or not isinstance(self._calibration, Calibration):
            return None, None
        try:
            gram, cross = self._calibration.pair(name, _Decoded(packed))
        except KeyError:  # nothing reaches it any more, as an expert
            return None, None
        return self._told(slot, gram), cross

    def _told(self, slot: Slot, gram: Gram) -> Gram:
        if gram.count < gram.width:
            self._few.add(slot)
        return gram

    def warn(self, made: Iterable[Slot]) -> None:
        """Warn of layers with few inputs in the calibration."""
        names = self._calibration.unseen if isinstance(self._calibration, Calibration) else ()
        unseen = [slot.name for slot in made if slot.name in names]
        few = [slot.name for slot in made if slot in self._few]
        if unseen:
            warnings.warn(
                f"no input reached {_listed(unseen)} in the calibration: they are rounded to the "
                "nearest codes. Calibrate with more data, unless the layers are of a kind that is "
                "never seen, such as transposed convolutions and Conv1D of Transformers, whose "
                "weight is of shape (in, out)",
                stacklevel=3,
            )
        if few:
            warnings.warn(
                f"the calibration has fewer inputs of {_listed(few)} than these have columns: "
                "codes are chosen from what it has. Calibrate with more data",
                stacklevel=3,
            )


def _listed(names: Sequence[str]) -> str:
    more = f" and {len(names) - 3} more" if len(names) > 3 else ""
    return ", ".join(names[:3]) + more


class _Decoded(Mapping[str, torch.Tensor]):
    """Packed weights by name, each decoded on access."""

    def __init__(self, packed: Mapping[Slot, Packed]) -> None:
        self._slots = {slot.name: slot for slot in packed}
        self._packed = packed

    def __getitem__(self, name: str) -> torch.Tensor:
        slot = self._slots[name]
        return PackedWeight(self._packed[slot]).decoded(slot.dtype).to(slot.device)

    def __iter__(self) -> Iterator[str]:
        return iter(self._slots)

    def __len__(self) -> int:
        return len(self._slots)


@dataclasses.dataclass(frozen=True)
class Outcome:
    """The result of packing one weight."""

    packed: Packed
    #: What chose the codes.
    rounding: str
    #: Root mean square of the error of the layer's outputs, relative to theirs.
    output_error: float | None
    seconds: float

    @property
    def judged(self) -> float:
        """The error of the outputs, or of the weights if the inputs are unknown."""
        return (self.packed.error() or 0.0) if self.output_error is None else self.output_error

    def row(self, slot: Slot, costs: Mapping[int, float] | None) -> PackedTensor:
        """Return the result as a row of a report."""
        return PackedTensor(
            name=slot.name,
            shape=slot.shape,
            bits=self.packed.bits,
            dense_nbytes=math.prod(slot.shape) * slot.dtype.itemsize,
            nbytes=self.packed.nbytes,
            error=self.packed.error() or 0.0,
            held=slot.held,
            rounding=self.rounding,
            output_error=self.output_error,
            seconds=self.seconds,
            costs=costs,
        )


@dataclasses.dataclass(frozen=True)
class Packer:
    """Packs weights with the options of `pack`."""

    more: Sequence[int]
    grams: Grams
    rounding: Solver | None
    prepare: Preparation | None
    _kept: dict[tuple[Slot, Affine], Outcome] = dataclasses.field(default_factory=dict)

    def pack(self, grids: Mapping[Slot, Affine]) -> dict[Slot, Outcome]:
        """Pack weights, and return them in the given order."""
        made: dict[Slot, Outcome] = {}
        for slot in self.grams.order(grids):
            made[slot] = self._next(slot, grids[slot], {s: each.packed for s, each in made.items()})
        return {slot: made[slot] for slot in grids}

    def tried(self, slot: Slot, grids: Sequence[Affine]) -> list[Outcome]:
        """Return a weight packed with each grid, alone; `pack` reuses the results."""
        missing = [grid for grid in grids if (slot, grid) not in self._kept]
        if missing:
            gram = self.grams.of(slot)  # which may have to run all batches again
            self._kept.update({(slot, grid): self._packed(slot, grid, gram) for grid in missing})
        return [self._kept[slot, grid] for grid in grids]

    def _next(self, slot: Slot, grid: Affine, before: Mapping[Slot, Packed]) -> Outcome:
        if not self.grams.are_sequential:
            return self.tried(slot, [grid])[0]
        return self._packed(slot, grid, *self.grams.behind(slot, before))

    def _packed(
        self,
        slot: Slot,
        grid: Affine,
        gram: Gram | None,
        cross: NDArray[np.float64] | None = None,
    ) -> Outcome:
        began = time.perf_counter()
        array, name, how = _array(slot), self.grams.nearest(slot), dict[str, Any]()
        if gram is not None:
            rounding = self.rounding or COMQ()
            parts = [type(each).__name__ for each in (self.prepare, rounding) if each is not None]
            name, how = ", ".join(parts), {"rounding": rounding, "prepare": self.prepare}
            if cross is not None:
                rows = array.reshape(-1, gram.width).astype(np.float32, copy=False)
                array = gram.compensated(rows, cross).reshape(array.shape)
        packed = weights.pack(array, grid, self.more, slot.name, gram=gram, **how)
        packed = dataclasses.replace(packed, dtype=packed_name(slot.dtype))
        if cross is not None:
            packed = dataclasses.replace(packed, measured=packed.error(_array(slot)))
        error = None if gram is None else gram.error(array, packed)
        return Outcome(packed, name, error, time.perf_counter() - began)


def plain(slot: Slot) -> torch.Tensor:
    """Return a parameter; raise if it is not a whole tensor with values."""
    tensor = slot.value
    if isinstance(tensor, PackedWeight) or type(tensor) not in (nn.Parameter, torch.Tensor):
        raise TypeError(
            f"parameter {slot.name!r} is a {type(tensor).__name__}: pack a model with plain "
            "tensors, then wrap it"
        )
    if tensor.layout is not torch.strided:
        raise TypeError(f"parameter {slot.name!r} must be dense, got layout {tensor.layout}")
    if tensor.is_meta:
        raise ValueError(f"parameter {slot.name!r} is on meta: it has no values")
    return tensor


def _array(slot: Slot) -> Any:
    """Return the values of a weight, on the CPU."""
    tensor = plain(slot)
    wide = torch.float64 if tensor.dtype is torch.float64 else torch.float32
    return tensor.detach().to("cpu", wide).contiguous().numpy()
