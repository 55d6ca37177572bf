"""Training with few bits: weights are rounded when read, with straight-through gradients."""

import contextlib
from collections.abc import Mapping
from typing import Literal, get_args

from torch import nn

from gradwire import _validate
from gradwire._validate import require
from gradwire.quantize import Affine
from gradwire.torch.weights.pack import is_packable, match_rules
from gradwire.torch.weights.rounded import is_rounded, release, round_parameter, rounded
from gradwire.torch.weights.slots import Slot, unwrapped
from gradwire.weights.pack import fitting_block

Clipped = Literal["pass", "zero"]

_CLIPPING = ("sawb", "squares")
"""Fits whose grids leave weights beyond them."""


def straight_through(
    model: nn.Module,
    rules: Mapping[str, Affine | None],
    *,
    clipped: Clipped = "pass",
    min_ndim: int = 2,
) -> contextlib.ExitStack:
    """Make a model compute with rounded weights, and train the underlying ones.

    Whenever a module reads one of these parameters, it gets the values that `pack` with the same
    rule would decode to, computed on each read. The gradient reaches the parameter as if it were
    not rounded. `pack` with the same rules, after the last step, produces the codes used in
    training, bit for bit, and ends the rounding.

    The parameters stay where they are: names, optimizers, wrappers such as DistributedDataParallel
    and state dicts are those of the model without rounding, and checkpoints fit both.

    Parameters
    ----------
    model : torch.nn.Module
        Changed in place. On devices other than the CPU, weights are copied to the host for
        rounding.
    rules : mapping of str to (Affine or None)
        As of `pack`: names of parameters or patterns; the first match applies. For 2 bits
        ``Affine(2, None, fit="sawb")``: one clip for a tensor.
    clipped : {"pass", "zero"}
        The gradient of a weight outside its grid: passed like all others (SAWB+), or zero (SAWB),
        which keeps it there. Grids of ``"range"`` and ``"zero"`` reach all weights.
    min_ndim : int
        As of `pack`: parameters with fewer dimensions are not rounded.

    Returns
    -------
    contextlib.ExitStack
        Its ``close()``, or the end of its ``with``, ends the rounding; you need not keep it.

    Raises
    ------
    NonFiniteError
        A weight has NaN or infinite entries; also raised when it is read later.
    TypeError
        ``rules`` is not a mapping of names to `Affine` or None; a parameter is sparse or of a
        subclass.
    ValueError
        A rule matches no parameter, or one that is already rounded or packed, has stochastic
        rounding, or has a block that does not fit; ``clipped`` is invalid.

    Notes
    -----
    A weight is encoded and decoded each time it is read; a loop over time steps should read it once
    before. ``module.weight`` is the rounded tensor: to change the parameter in place, take it from
    ``model.named_parameters()``. After an error the model is unchanged.

    References
    ----------
    Bengio, Léonard, Courville, "Estimating or Propagating Gradients Through Stochastic Neurons for
    Conditional Computation", 2013, section 4: the straight-through estimator. Choi, Venkataramani,
    Srinivasan, Gopalakrishnan, Wang, Chuang, "Accurate and Efficient 2-bit Quantized Neural
    Networks", MLSys 2019, section 3: SAWB. SAWB+, its gradient for all weights, as in IBM's
    fms-model-optimizer (public code).
    """
    _validate.choice("clipped", clipped, get_args(Clipped))
    min_ndim = _validate.integer("min_ndim", min_ndim, low=0)
    inner = unwrapped(model)
    arguments = {
        slot: _arguments(slot, affine, clipped == "zero" and affine.fit in _CLIPPING)
        for slot, affine in match_rules(inner, rules).items()
        if affine is not None and is_packable(slot, min_ndim)
    }
    ending = contextlib.ExitStack()
    for slot, how in arguments.items():
        for module, attribute in slot.owners:
            round_parameter(module, attribute, how)
            ending.callback(release, module, attribute)
    return ending


def _arguments(slot: Slot, affine: Affine, clips: bool) -> tuple[int, int | None, str, bool, str]:
    require(
        not any(is_rounded(*owner) for owner in slot.owners),
        "{!r} is already rounded: close what straight_through() returned, or give it None in the "
        "rules",
        slot.name,
    )
    nearest = affine.rounding == "nearest"
    require(nearest, "{!r} must be rounded to nearest, not with {!r}", slot.name, affine)
    parameter = slot.plain()
    block = fitting_block(slot.shape, affine.block) or affine.block
    how = (affine.bits, block, affine.fit, clips, slot.name)
    rounded(parameter.detach(), *how)  # raises what reading would raise
    return how
