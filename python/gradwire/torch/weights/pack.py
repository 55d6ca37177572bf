"""Packs a model in memory."""

from collections.abc import Mapping, Sequence
from typing import Any

from torch import nn
from torch.nn.parallel import DistributedDataParallel

from gradwire import _rules, _validate
from gradwire.quantize import Affine
from gradwire.torch.weights.budget import assign
from gradwire.torch.weights.ops import FLOATS
from gradwire.torch.weights.packer import Packer
from gradwire.torch.weights.report import PackReport
from gradwire.torch.weights.slots import Slot, put, slots_of
from gradwire.torch.weights.weight import PackedWeight
from gradwire.weights import Budget, Gram
from gradwire.weights.pack import check_solving
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
    inner = getattr(model, "_orig_mod", model)  # what torch.compile returns
    if any(isinstance(each, DistributedDataParallel) for each in inner.modules()):
        raise TypeError("pack() takes an unwrapped model: pack it, then wrap it")
    check_rules(rules, (Affine, Budget))
    min_ndim = _validate.integer("min_ndim", min_ndim, low=0)
    check_solving(calibration is not None, rounding, prepare, "calibration", more)
    buffers = {id(each) for each in inner.buffers()}
    every = [slot for slot in slots_of(inner) if id(slot.value) not in buffers]
    _rules.check(rules, [name for slot in every for name in slot.names])
    packer = Packer(calibration, every, more, rounding, prepare)
    matched = [(slot, _rules.first(rules, *slot.names)) for slot in every]
    chosen = {slot: how for slot, how in matched if how is not None}
    packable = {slot for slot in chosen if is_packable(slot, min_ndim)}
    grids = {slot: how for slot, how in chosen.items() if slot in packable}
    costs: dict[Slot, Mapping[int, float]] = {}
    budgets = {id(how): how for how in chosen.values() if isinstance(how, Budget)}
    for budget in budgets.values():
        named = {slot: slot in packable for slot, how in chosen.items() if how is budget}
        for slot, (grid, cost) in assign(budget, inner, named, packer).items():
            grids[slot], costs[slot] = grid, cost
    made = packer.pack({slot: how for slot, how in grids.items() if isinstance(how, Affine)})
    rows = tuple(each.row(slot, costs.get(slot)) for slot, each in made.items())
    left = [slot for slot in every if slot not in made]
    report = PackReport(rows, tuple(slot.name for slot in left), sum(slot.nbytes for slot in left))
    packer.warn(made)
    put({slot: each.packed for slot, each in made.items()})
    return report


def check_rules(rules: Mapping[str, Any], kinds: tuple[type, ...] = (Affine,)) -> None:
    """Raise a TypeError for a rule that is neither of these types nor None."""
    names = ", ".join(kind.__name__ for kind in kinds)
    for pattern, how in rules.items():
        if how is not None and not isinstance(how, kinds):
            raise TypeError(f"rules[{pattern!r}] must be {names} or None, got {how!r}")


def is_packable(slot: Slot, min_ndim: int) -> bool:
    """Tell whether a parameter that matches a rule can be packed; raise if it already is."""
    if isinstance(slot.value, PackedWeight) or slot.kept() is not None:
        raise ValueError(f"{slot.name!r} is already packed: give it None in the rules")
    return slot.dtype in FLOATS and len(slot.shape) >= min_ndim
