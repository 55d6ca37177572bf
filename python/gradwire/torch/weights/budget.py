"""Assigns bits to the weights of a model, within a budget."""

import contextlib
import math
from collections.abc import Iterator, Mapping

import torch
from torch import nn

from gradwire.quantize import Affine
from gradwire.torch.weights.calibration import evaluated
from gradwire.torch.weights.packer import Packer
from gradwire.torch.weights.slots import Slot
from gradwire.torch.weights.weight import Packed, PackedWeight
from gradwire.weights import Budget
from gradwire.weights.budget import allocate
from gradwire.weights.pack import fitting_block

Choice = tuple[Affine, Mapping[int, float]]


def assign(
    budget: Budget, model: nn.Module, slots: Mapping[Slot, bool], packer: Packer
) -> dict[Slot, Choice]:
    """Return the grid assigned to each weight, and the cost of each number of bits.

    Parameters
    ----------
    budget : Budget
        The budget.
    model : torch.nn.Module
        The model of these weights; its loss is evaluated, and it is restored at the end.
    slots : mapping of Slot to bool
        All tensors that count for the budget, and whether each can be packed.
    packer : Packer
        Packs them.

    Raises
    ------
    ValueError
        The budget is below the size with the fewest bits, or above that with the most; the loss is
        not a finite number.
    """
    block = budget.grid.block
    packed = [
        slot
        for slot, can in slots.items()
        if can and (not block or fitting_block(slot.shape, block))
    ]
    numel = sum(math.prod(slot.shape) for slot in slots)
    stays = 8 * sum(slot.nbytes for slot in slots if slot not in packed)
    limit = int(budget.bits * numel) - stays
    tried = {slot: packer.tried(slot, budget.grids) for slot in packed}
    sizes = [[8 * each.packed.nbytes for each in outcomes] for outcomes in tried.values()]
    low, high = (sum(map(pick, sizes)) for pick in (min, max))
    if not low <= limit <= high:
        fewest, most = ((stays + bits) / max(1, numel) for bits in (low, high))
        raise ValueError(
            f"a budget of {budget.bits:g} bits per weight is not between {fewest:.3f} and "
            f"{most:.3f}, the range of the choices {budget.choices}, including grids and "
            f"{stays / 8:.0f} bytes that cannot be packed: change bits or choices"
        )
    if budget.loss is None:
        costs = [
            [math.prod(slot.shape) * each.judged**2 for each in outcomes]
            for slot, outcomes in tried.items()
        ]
    else:
        with evaluated(model):
            dense = _loss(budget)
            if not math.isfinite(dense):
                raise ValueError(f"the budget's loss is {dense} before anything is packed")
            costs = []
            for slot, outcomes in tried.items():
                own = []
                for each in outcomes:
                    with _replaced(slot, each.packed):
                        own.append(_loss(budget) - dense)
                costs.append(own)
    chosen = allocate(sizes, costs, limit)
    return {
        slot: (budget.grids[i], dict(zip(budget.choices, cost, strict=True)))
        for slot, i, cost in zip(packed, chosen, costs, strict=True)
    }


def _loss(budget: Budget) -> float:
    assert budget.loss is not None
    return float(budget.loss())


@contextlib.contextmanager
def _replaced(slot: Slot, packed: Packed) -> Iterator[None]:
    """Replace a weight's values by packed ones within a block."""
    value = slot.value
    assert isinstance(value, torch.Tensor)
    before = value.detach().clone()
    try:
        slot.fill(PackedWeight(packed).decoded(slot.dtype))
        yield
    finally:
        slot.fill(before)
