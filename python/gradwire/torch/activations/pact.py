"""Activations in few bits, with a learned clip (PACT)."""

import math
import warnings
from typing import Any

import torch
from torch import nn
from torch.autograd.function import once_differentiable

from gradwire import _validate
from gradwire._validate import require
from gradwire.errors import NonFiniteError

_LEAST = torch.finfo(torch.float32).tiny


class PACT(nn.Module):
    """Clip activations at a learned value, and round them to ``bits`` bits.

    ``y = round(clip(x, 0, a) * n / a) * a / n`` with ``n = 2**bits - 1``: it replaces a ReLU. With
    ``two_sided`` x is clipped to -a and a, and rounded to as many equal steps between these; zero
    is between two levels then.

    The gradient passes through where x is not clipped. The gradient of the clip `a` is a sum over
    x: with PACT, 1 where x is clipped; with PACT+ also the rounding term ``(round(z) - z) / n``
    with ``z = x * n / a`` where x is not clipped, so that rounding errors can lower the clip.

    Forward takes four passes over x, backward nine; x and the clip are kept for backward, and
    nothing else. x has any shape, strides and floating-point dtype. Computed in float32, or float64
    for float64; the result has the dtype of x.

    Parameters
    ----------
    bits : int
        1 to 8.
    clip : float
        Where the clip starts, above 0.
    plus : bool
        Use the gradient of PACT+; False uses that of PACT, which needs weight decay on its clip
        (`parameter_groups`).
    two_sided : bool
        For values of both signs, such as the hidden state of an LSTM.

    Attributes
    ----------
    clip : torch.nn.Parameter
        float32, of shape ().

    Raises
    ------
    NonFiniteError
        The clip is NaN, as after a NaN gradient. This, and the sign of the clip, is checked on the
        CPU, outside compiled graphs.
    TypeError
        x holds integers.
    ValueError
        An argument is out of its range.
    RuntimeError
        Second derivatives are requested.

    Warns
    -----
    RuntimeWarning
        The clip is 0 or less: it counts as the smallest normal number, so that gradients still
        reach it. Warned once per module.

    References
    ----------
    Choi, Wang, Venkataramani, Chuang, Srinivasan, Gopalakrishnan, "PACT: Parameterized Clipping
    Activation for Quantized Neural Networks", 2018, section 3. PACT+ and the two-sided form as in
    IBM's fms-model-optimizer (public code).
    """

    clip: nn.Parameter

    def __init__(
        self, bits: int, clip: float = 8.0, plus: bool = True, two_sided: bool = False
    ) -> None:
        super().__init__()
        self.bits = _validate.integer("bits", bits, low=1, high=8)
        self.plus = _validate.boolean("plus", plus)
        self.two_sided = _validate.boolean("two_sided", two_sided)
        self.clip = nn.Parameter(torch.tensor(_validate.positive("clip", clip, above=0)))
        self._warned = False

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return x clipped and rounded, of its shape, strides and dtype."""
        is_real = x.is_floating_point()
        require(is_real, "x must be floating-point, got {}", x.dtype, kind=TypeError)
        if self.clip.is_cpu and not torch.compiler.is_compiling():
            self._check_clip()
        y: torch.Tensor = _Round.apply(x, self.clip, self.bits, self.plus, self.two_sided)
        return y

    def _check_clip(self) -> None:
        value = float(self.clip.detach())
        if math.isnan(value):
            raise NonFiniteError(1, 0, f"the clip of {self!r}")
        if value <= 0.0 and not self._warned:
            self._warned = True
            message = f"the clip of {self!r} reached {value:.3g}: it counts as {_LEAST:.3g}"
            warnings.warn(f"{message}; train with a smaller learning rate", RuntimeWarning, 3)

    def extra_repr(self) -> str:
        """Return what `print` shows in the parentheses."""
        sides = ", two_sided=True" if self.two_sided else ""
        return f"bits={self.bits}, plus={self.plus}{sides}"


class _Round(torch.autograd.Function):
    """Computes the gradients of x and of the clip in one pass over x."""

    @staticmethod
    def forward(
        ctx: Any, x: torch.Tensor, clip: torch.Tensor, bits: int, plus: bool, two_sided: bool
    ) -> torch.Tensor:
        ctx.save_for_backward(x, clip)
        ctx.how = bits, plus, two_sided
        above, zero, bound = _grid(x, clip, bits, two_sided)
        step = (bound / above).clamp_min(_LEAST)
        return _levels(_wide(x) / step, above, zero).mul_(step).to(x.dtype)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        x, clip = ctx.saved_tensors
        bits, plus, two_sided = ctx.how
        above, zero, bound = _grid(x, clip, bits, two_sided)
        wide = _wide(gradient)
        z = (_wide(x) / bound).mul_(above)  # exactly `above` at the clip
        of_x = torch.ops.aten.hardtanh_backward(wide, z, -zero, above).to(x.dtype)
        if plus:
            inside = torch.ops.aten.hardtanh_backward(z, z, -zero, above)
            share = _levels(z, above, zero).sub_(inside)
        else:
            share = z.div_(above).clamp_(-1.0 if two_sided else 0.0, 1.0).trunc_().mul_(above)
        of_clip = (share.mul_(wide).sum() / above).to(clip.dtype)
        return of_x, of_clip, None, None, None


def _grid(
    x: torch.Tensor, clip: torch.Tensor, bits: int, two_sided: bool
) -> tuple[float, float, torch.Tensor]:
    """Return the number of steps above and below zero, and the effective clip."""
    steps = float(2**bits - 1)
    bound = clip.to(_wide(x).dtype).clamp_min(_LEAST)
    return (steps / 2, steps / 2, bound) if two_sided else (steps, 0.0, bound)


def _levels(z: torch.Tensor, above: float, zero: float) -> torch.Tensor:
    """Round values, in steps from zero, to the nearest level, in place."""
    if zero:
        return z.add_(zero).clamp_(0.0, above + zero).round_().sub_(zero)
    return z.clamp_(0.0, above).round_()


def _wide(x: torch.Tensor) -> torch.Tensor:
    return x if x.dtype is torch.float64 else x.to(torch.float32)


def parameter_groups(model: nn.Module, weight_decay: float) -> list[dict[str, Any]]:
    """Return parameter groups for an optimizer: the clips of `PACT`, and all others.

    Parameters
    ----------
    model : torch.nn.Module
        Each of its parameters is in exactly one group.
    weight_decay : float
        Weight decay of all parameters except clips of PACT+. It applies to clips of PACT, as in the
        paper: their gradient alone never lowers a clip to reduce rounding errors. PACT+ needs none.

    Returns
    -------
    list of dict
        With the keys ``"params"`` and ``"weight_decay"``; groups without parameters are left out.

    Raises
    ------
    TypeError, ValueError
        ``weight_decay`` is no number, negative or not finite.

    References
    ----------
    Choi et al., "PACT", 2018, section 3.2: the regularization of the clip.
    """
    decay = _validate.positive("weight_decay", weight_decay)
    clips = {
        plus: [
            module.clip
            for module in model.modules()
            if isinstance(module, PACT) and module.plus is plus
        ]
        for plus in (False, True)
    }
    known = {id(clip) for every in clips.values() for clip in every}
    others = [parameter for parameter in model.parameters() if id(parameter) not in known]
    groups: list[dict[str, Any]] = [
        {"params": others, "weight_decay": decay},
        {"params": clips[False], "weight_decay": decay},
        {"params": clips[True], "weight_decay": 0.0},
    ]
    return [group for group in groups if group["params"]]
