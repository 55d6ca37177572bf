"""Packs a model in memory: within budgets, and with a calibration of its layers' inputs."""

import contextlib
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
from torch.nn.parallel import DistributedDataParallel

from gradwire import _rules, _validate, weights
from gradwire._validate import require
from gradwire.quantize import Affine
from gradwire.torch.weights.calibration import Calibration, in_eval_mode
from gradwire.torch.weights.ops import FLOATS
from gradwire.torch.weights.report import PackedTensor, PackReport
from gradwire.torch.weights.slots import Slot, put, slots_of, unwrapped
from gradwire.torch.weights.weight import Packed, PackedWeight, packed_name
from gradwire.weights import COMQ, Budget, Gram
from gradwire.weights.budget import allocate
from gradwire.weights.pack import check_solving, fitting_block, pack_solved
from gradwire.weights.solve import Preparation, Solver


def pack(
    model: nn.Module,
    rules: Mapping[str, Affine | Budget | None],
    more: Sequence[int] = (),
    *,
    min_ndim: int = 2,
    calibration: Mapping[str, Gram] | None = None,
    rounding: Solver | None = None,
    prepare: Preparation | None = None,
) -> PackReport:
    """Pack the weights of a model, which is changed in place.

    Linear layers become `PackedLinear`, embeddings `PackedEmbedding`, where they are exactly
    `torch.nn.Linear` and `torch.nn.Embedding` without ``max_norm``. Conv1D of Transformers and
    parameters of three dimensions in modules that are not torch's own, as of experts, stay packed
    as well. Other parameters that match a rule get the values decoded from their packed bytes, and
    are saved as those bytes until they are changed. Tied weights are packed once, and stay tied.
    Create optimizers afterwards: packed weights are not parameters.

    Parameters
    ----------
    model : torch.nn.Module
        A model on any device, not wrapped for training: pack first.
    rules : mapping of str to (Affine, Budget or None)
        How to pack parameters by name: keys are names as in ``model.named_parameters()``, or
        patterns with ``*``, ``?`` and ``[abc]``; the first match applies, to any name of a tied
        weight. Parameters with None, without a match, or not of floating-point numbers are not
        packed. A `Budget` chooses bits for all parameters that its key matches.
    more : sequence of int
        Further bits, such as (4,), which `load` may leave out; see `gradwire.weights.pack`.
    min_ndim : int
        Parameters with fewer dimensions are not packed: by default biases and norms.
    calibration : Calibration or mapping of str to gradwire.weights.Gram, optional
        Statistics of the layers' inputs, by name of the weight: codes are chosen to change the
        layers' outputs least. Weights without statistics are rounded to the nearest codes.
    rounding : gradwire.weights.Solver, optional
        Chooses codes by the calibration: `COMQ` (the default), `GPTQ`, or one of your own.
    prepare : gradwire.weights.Preparation, optional
        Changes calibrated weights before packing: `MagR`, or one of your own.

    Returns
    -------
    PackReport
        Names, shapes, bits, bytes and errors. ``print`` shows a table.

    Raises
    ------
    NonFiniteError
        A weight has NaN or infinite entries.
    TypeError
        ``rules`` is not a mapping of names to `Affine`, `Budget` or None; the model is wrapped for
        training; a weight is sparse, or of a subclass.
    ValueError
        A rule matches no parameter, or one that is already packed; a weight has no values; the bits
        are incompatible. A budget is below the size with the fewest bits, or above that with the
        most. The calibration is of another model, or `rounding` and `prepare` are given without
        one.

    Warns
    -----
    UserWarning
        The calibration has no inputs for some layers, or fewer inputs than they have columns.

    Notes
    -----
    All weights are packed before the first is replaced: after an error the model is as it was.
    """
    inner = unwrapped(model)
    wrapped = any(isinstance(module, DistributedDataParallel) for module in inner.modules())
    require(not wrapped, "pack() takes an unwrapped model: pack it, then wrap it", kind=TypeError)
    check_solving(calibration is not None, rounding, prepare, "calibration", more)
    rule_of = match_rules(inner, rules, (Affine, Budget))
    packer = _Packer(calibration, [*rule_of], more, rounding, prepare)
    min_ndim = _validate.integer("min_ndim", min_ndim, low=0)
    packable = {
        slot for slot, rule in rule_of.items() if rule is not None and is_packable(slot, min_ndim)
    }
    grids = {slot: rule for slot, rule in rule_of.items() if slot in packable}
    costs: dict[Slot, Mapping[int, float]] = {}
    budgets = {id(rule): rule for rule in rule_of.values() if isinstance(rule, Budget)}
    for budget in budgets.values():
        counted = {slot: slot in packable for slot, rule in rule_of.items() if rule is budget}
        for slot, (grid, cost) in packer.assign(budget, inner, counted).items():
            grids[slot], costs[slot] = grid, cost
    outcomes = packer.pack({slot: rule for slot, rule in grids.items() if isinstance(rule, Affine)})
    rows = tuple(
        dataclasses.replace(row, costs=costs.get(slot)) for slot, (_, row) in outcomes.items()
    )
    left = [slot for slot in rule_of if slot not in outcomes]
    report = PackReport(rows, tuple(slot.name for slot in left), sum(slot.nbytes for slot in left))
    packer.warn(outcomes)
    put({slot: packed for slot, (packed, _) in outcomes.items()})
    return report


def match_rules(
    model: nn.Module, rules: Mapping[str, Any], kinds: tuple[type, ...] = (Affine,)
) -> dict[Slot, Any]:
    """Return the rule, or None, of each parameter; a rule is of one of these types."""
    names = ", ".join(kind.__name__ for kind in kinds)
    for pattern, rule in rules.items():
        message = "rules[{!r}] must be {} or None, got {!r}"
        known = rule is None or isinstance(rule, kinds)
        require(known, message, pattern, names, rule, kind=TypeError)
    buffers = {id(buffer) for buffer in model.buffers()}
    parameters = [slot for slot in slots_of(model) if id(slot.value) not in buffers]
    _rules.check(rules, [name for slot in parameters for name in slot.names])
    return {slot: _rules.first(rules, *slot.names) for slot in parameters}


def is_packable(slot: Slot, min_ndim: int) -> bool:
    """Tell whether a parameter that matches a rule can be packed; raise if it already is."""
    plain = not isinstance(slot.value, PackedWeight) and slot.source() is None
    require(plain, "{!r} is already packed: give it None in the rules", slot.name)
    return slot.dtype in FLOATS and len(slot.shape) >= min_ndim


_Outcome = tuple[Packed, PackedTensor]
"""A packed weight, and its row of the report."""


class _Packer:
    """Packs weights with the options of `pack`, one by one."""

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
            message = "the calibration is for another model: this one has no weight {!r}"
            require(name in slot_of, message, name)
            self._names[slot_of[name]] = name
        self._few: set[Slot] = set()
        self._tried: dict[tuple[Slot, Affine], _Outcome] = {}

    def pack(self, grids: Mapping[Slot, Affine]) -> dict[Slot, _Outcome]:
        if self._seen is None or not self._seen.sequential:
            return {slot: self._outcomes(slot, [grid])[0] for slot, grid in grids.items()}
        outcomes: dict[Slot, _Outcome] = {}
        decoded: dict[str, torch.Tensor] = {}
        first = [slot for slot in grids if slot not in self._names]
        for slot in [*first, *(slot for slot in self._names if slot in grids)]:
            name = self._names.get(slot)
            inputs = (None, None) if name is None else self._seen.pair(name, decoded)
            outcomes[slot] = self._pack(slot, grids[slot], *inputs)
            weight = PackedWeight(outcomes[slot][0], slot.device)
            decoded[slot.name] = weight.decoded(slot.dtype)
        return {slot: outcomes[slot] for slot in grids}

    def assign(
        self, budget: Budget, model: nn.Module, counted: Mapping[Slot, bool]
    ) -> dict[Slot, tuple[Affine, Mapping[int, float]]]:
        """Return the grid of each weight in a budget, and the cost of each number of bits.

        ``counted`` has all tensors that count for the budget, and whether each can be packed. The
        loss is evaluated with the model, which is restored at the end.
        """
        block = budget.grid.block
        packed = [
            slot
            for slot, can in counted.items()
            if can and (not block or fitting_block(slot.shape, block))
        ]
        numel = sum(math.prod(slot.shape) for slot in counted)
        rest = 8 * sum(slot.nbytes for slot in counted if slot not in packed)
        limit = int(budget.bits * numel) - rest
        tried = {slot: self._outcomes(slot, budget.grids) for slot in packed}
        sizes = [[8 * row.nbytes for _, row in outcomes] for outcomes in tried.values()]
        low, high = (sum(map(pick, sizes)) for pick in (min, max))
        fewest, most = ((rest + bits) / max(1, numel) for bits in (low, high))
        require(
            low <= limit <= high,
            "a budget of {:g} bits per weight is not between {:.3f} and {:.3f}, the range of the "
            "choices {}, including grids and {:.0f} bytes that cannot be packed: change bits or "
            "choices",
            *(budget.bits, fewest, most, budget.choices, rest / 8),
        )
        if budget.loss is None:
            costs = [
                [math.prod(row.shape) * _output_error(row) ** 2 for _, row in outcomes]
                for outcomes in tried.values()
            ]
        else:
            with in_eval_mode(model):
                dense = float(budget.loss())
                finite = math.isfinite(dense)
                require(finite, "the budget's loss is {} before anything is packed", dense)
                costs = [[] for _ in tried]
                for cost, (slot, outcomes) in zip(costs, tried.items(), strict=True):
                    for packed_weight, _ in outcomes:
                        with _with_packed(slot, packed_weight):
                            cost.append(float(budget.loss()) - dense)
        return {
            slot: (budget.grids[i], dict(zip(budget.choices, cost, strict=True)))
            for slot, i, cost in zip(packed, allocate(sizes, costs, limit), costs, strict=True)
        }

    def _outcomes(self, slot: Slot, grids: Sequence[Affine]) -> list[_Outcome]:
        """Return a weight packed with each grid, alone; each is packed once."""
        missing = [grid for grid in grids if (slot, grid) not in self._tried]
        if missing:
            name = self._names.get(slot)
            gram = None if name is None else self._grams[name]  # all batches may run again for it
            self._tried.update({(slot, grid): self._pack(slot, grid, gram) for grid in missing})
        return [self._tried[slot, grid] for grid in grids]

    def _pack(
        self,
        slot: Slot,
        grid: Affine,
        gram: Gram | None,
        cross: NDArray[np.float64] | None = None,
    ) -> _Outcome:
        began = time.perf_counter()
        values = slot.plain().detach()
        wide = torch.float64 if values.dtype is torch.float64 else torch.float32
        array = values.to("cpu", wide).contiguous().numpy()
        rounding, error = "nearest", None
        if gram is None:
            packed = weights.pack(array, grid, self._more, slot.name)
            if self._seen is not None and slot.name in self._seen.shared:
                rounding = "nearest (shared)"
        else:
            solver = self._rounding or COMQ()
            parts = [type(part).__name__ for part in (self._prepare, solver) if part is not None]
            rounding = ", ".join(parts)
            packed, error = pack_solved(array, grid, slot.name, gram, solver, self._prepare, cross)
            if gram.count < gram.width:
                self._few.add(slot)
        return dataclasses.replace(packed, dtype=packed_name(slot.dtype)), PackedTensor(
            name=slot.name,
            shape=slot.shape,
            bits=packed.bits,
            dense_nbytes=math.prod(slot.shape) * slot.dtype.itemsize,
            nbytes=packed.nbytes,
            error=packed.error() or 0.0,
            held=slot.held,
            rounding=rounding,
            output_error=error,
            seconds=time.perf_counter() - began,
        )

    def warn(self, packed: Iterable[Slot]) -> None:
        names = () if self._seen is None else self._seen.unseen
        unseen = [slot.name for slot in packed if slot.name in names]
        few = [slot.name for slot in packed if slot in self._few]
        if unseen:
            warnings.warn(
                f"no input reached {_first_of(unseen)} in the calibration: they are rounded to the "
                "nearest codes. Calibrate with more data, unless the layers are of a kind that is "
                "never seen, such as transposed convolutions, Conv1D of Transformers or experts in "
                "one parameter",
                stacklevel=3,
            )
        if few:
            warnings.warn(
                f"the calibration has fewer inputs of {_first_of(few)} than these have columns: "
                "codes are chosen from what it has. Calibrate with more data",
                stacklevel=3,
            )


def _output_error(row: PackedTensor) -> float:
    """Return the error of the outputs, or of the weights if the inputs are unknown."""
    return row.error if row.output_error is None else row.output_error


def _first_of(names: Sequence[str]) -> str:
    more = f" and {len(names) - 3} more" if len(names) > 3 else ""
    return ", ".join(names[:3]) + more


@contextlib.contextmanager
def _with_packed(slot: Slot, packed: Packed) -> Iterator[None]:
    assert isinstance(slot.value, torch.Tensor)
    before = slot.value.detach().clone()
    try:
        slot.fill(PackedWeight(packed).decoded(slot.dtype))
        yield
    finally:
        slot.fill(before)
