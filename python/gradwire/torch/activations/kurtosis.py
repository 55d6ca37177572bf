"""A penalty on outliers in outputs, which widen the range that codes must cover."""

from collections.abc import Collection
from typing import Any

import torch
from torch import nn
from torch.autograd.function import once_differentiable

from gradwire import _rules, _validate

_LAYERS = (nn.Linear, nn.Conv1d, nn.Conv2d, nn.Conv3d)


class KurtosisPenalty:
    """A term for the loss: the kurtosis of layers' outputs, which grows with outliers.

    ``K = m4 / m2**2``, with the central moments of all entries of an output: 3 for a normal
    distribution, 1.8 for a uniform one. Hooks record outputs, only in training and with gradients.
    Each costs four reads of the output in forward and backward, and is kept for backward, as the
    next layer mostly does anyway.

    Parameters
    ----------
    model : torch.nn.Module
        Hooks are added; nothing else changes.
    weight : float
        Weight of the summed kurtoses of all outputs, above 0, such as 1e-3.
    modules : collection of str, optional
        Names as in ``model.named_modules()``, or patterns of them. By default all linear layers and
        convolutions. Their outputs must be tensors.

    Raises
    ------
    ValueError
        A name matches no module, no module is left, or the weight is not positive.

    References
    ----------
    Nrusimha, Mishra, Wang, Alistarh, Panda, Kim, "Mitigating the Impact of Outlier Channels for
    Language Model Quantization with Activation Regularization", 2024, section 4. The sum over all
    channels of an output, and the gradient in closed form, are ours.
    """

    def __init__(
        self, model: nn.Module, weight: float, modules: Collection[str] | None = None
    ) -> None:
        self.weight = _validate.clip("weight", weight)
        every = dict(model.named_modules())
        if modules is None:
            chosen = [each for each in every.values() if isinstance(each, _LAYERS)]
        else:
            wanted = dict.fromkeys([modules] if isinstance(modules, str) else modules, True)
            _rules.check(wanted, every, "module")
            chosen = [each for name, each in every.items() if _rules.first(wanted, name)]
        if not chosen:
            raise ValueError("the model has no linear layer or convolution: pass modules=")
        self._found: list[torch.Tensor] = []
        self._hooks = [each.register_forward_hook(self._see) for each in chosen]

    def _see(self, module: nn.Module, inputs: object, output: torch.Tensor) -> None:
        if module.training and torch.is_grad_enabled():
            self._found.append(_Kurtosis.apply(output))

    def penalty(self) -> torch.Tensor:
        """Return the weighted sum for the passes since the last call, and forget them.

        Raises
        ------
        RuntimeError
            There was no pass: call this once after each forward in training.
        """
        if not self._found:
            raise RuntimeError("no output was seen: run the model in training, with gradients")
        total = self.weight * torch.stack(self._found).sum()
        self._found.clear()
        return total

    def remove(self) -> None:
        """Take the hooks off the model."""
        for hook in self._hooks:
            hook.remove()
        self._found.clear()


class _Kurtosis(torch.autograd.Function):
    """The kurtosis of a tensor, in float32, or float64 for float64. Zero for equal values."""

    @staticmethod
    def forward(ctx: Any, y: torch.Tensor) -> torch.Tensor:
        wide = y if y.dtype is torch.float64 else y.to(torch.float32)
        variance, mean = torch.var_mean(wide, correction=0)
        deviation = torch.where(variance > 0, variance.sqrt(), 1.0)
        z = (wide - mean).div_(deviation)
        cube = (z * z).mul_(z)
        third, kurtosis = cube.mean(), cube.mul_(z).mean()
        ctx.save_for_backward(y, mean, deviation, third, kurtosis)
        return kurtosis

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
        y, mean, deviation, third, kurtosis = ctx.saved_tensors
        z = (y.to(mean.dtype) - mean).div_(deviation)
        slope = (z * z).sub_(kurtosis).mul_(z).sub_(third)
        found: torch.Tensor = slope.mul_(gradient * 4 / (deviation * y.numel())).to(y.dtype)
        return found
