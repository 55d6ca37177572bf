"""Packs weights one by one, using a calibration of their layers' inputs."""

import dataclasses
import math
import time
import warnings
from collections.abc import Iterable, Mapping, Sequence
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
from gradwire.weights.pack import pack_solved
from gradwire.weights.solve import Preparation, Solver


def _listed(names: Sequence[str]) -> str:
    more = f" and {len(names) - 3} more" if len(names) > 3 else ""
    return ", ".join(names[:3]) + more


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


class Packer:
    """Packs weights with the options of `pack`."""

    def __init__(
        self,
        calibration: Mapping[str, Gram] | None,
        slots: Sequence[Slot],
        more: Sequence[int],
        rounding: Solver | None,
        prepare: Preparation | None,
    ) -> None:
        self._grams: Mapping[str, Gram] = {} if calibration is None else calibration
        self._seen = calibration if isinstance(calibration, Calibration) else None
        self._more, self._rounding, self._prepare = more, rounding, prepare
        slot_of = {name: slot for slot in slots for name in slot.names}
        # The weights with a matrix, in the order of their use, and their names in the calibration.
        self._names: dict[Slot, str] = {}
        for name in self._grams:
            if name not in slot_of:
                raise ValueError(
                    f"the calibration is for another model: this one has no weight {name!r}"
                )
            self._names[slot_of[name]] = name
        self._few: set[Slot] = set()
        self._kept: dict[tuple[Slot, Affine], Outcome] = {}

    def pack(self, grids: Mapping[Slot, Affine]) -> dict[Slot, Outcome]:
        """Pack weights, and return them in the given order."""
        if self._seen is None or not self._seen.sequential:
            return {slot: self.tried(slot, [grid])[0] for slot, grid in grids.items()}
        made: dict[Slot, Outcome] = {}
        decoded: dict[str, torch.Tensor] = {}
        first = [slot for slot in grids if slot not in self._names]
        for slot in [*first, *(slot for slot in self._names if slot in grids)]:
            name = self._names.get(slot)
            found = (None, None) if name is None else self._seen.pair(name, decoded)
            made[slot] = self._packed(slot, grids[slot], *found)
            weight = PackedWeight(made[slot].packed, slot.device)
            decoded[slot.name] = weight.decoded(slot.dtype)
        return {slot: made[slot] for slot in grids}

    def tried(self, slot: Slot, grids: Sequence[Affine]) -> list[Outcome]:
        """Return a weight packed with each grid, alone; `pack` reuses the results."""
        missing = [grid for grid in grids if (slot, grid) not in self._kept]
        if missing:
            name = self._names.get(slot)
            gram = None if name is None else self._grams[name]  # all batches may run again for it
            self._kept.update({(slot, grid): self._packed(slot, grid, gram) for grid in missing})
        return [self._kept[slot, grid] for grid in grids]

    def _packed(
        self,
        slot: Slot,
        grid: Affine,
        gram: Gram | None,
        cross: NDArray[np.float64] | None = None,
    ) -> Outcome:
        began = time.perf_counter()
        array, name, error = _array(slot), "nearest", None
        if gram is None:
            packed = weights.pack(array, grid, self._more, slot.name)
            if self._seen is not None and slot.name in self._seen.shared:
                name = "nearest (shared)"
        else:
            rounding = self._rounding or COMQ()
            parts = [type(each).__name__ for each in (self._prepare, rounding) if each is not None]
            name = ", ".join(parts)
            packed, error = pack_solved(array, grid, slot.name, gram, rounding, self._prepare, cross)
            if gram.count < gram.width:
                self._few.add(slot)
        packed = dataclasses.replace(packed, dtype=packed_name(slot.dtype))
        return Outcome(packed, name, error, time.perf_counter() - began)

    def warn(self, made: Iterable[Slot]) -> None:
        """Warn of layers with few inputs in the calibration."""
        names = () if self._seen is None else self._seen.unseen
        unseen = [slot.name for slot in made if slot.name in names]
        few = [slot.name for slot in made if slot in self._few]
        if unseen:
            warnings.warn(
                f"no input reached {_listed(unseen)} in the calibration: they are rounded to the "
                "nearest codes. Calibrate with more data, unless the layers are of a kind that is "
                "never seen, such as transposed convolutions, Conv1D of Transformers or experts in "
                "one parameter",
                stacklevel=3,
            )
        if few:
            warnings.warn(
                f"the calibration has fewer inputs of {_listed(few)} than these have columns: "
                "codes are chosen from what it has. Calibrate with more data",
                stacklevel=3,
            )


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
