"""An optimizer for codecs with momentum correction.

With `gradwire.memory.MomentumCorrection`, each rank applies momentum before it selects entries. The
averaged gradient already includes momentum, and an optimizer with momentum would apply it twice.
Two things remain for the optimizer: the momentum of weight decay, which no rank sends, and the
momentum of parameters that are sent dense, such as biases.

>>> handle = gradwire.torch.ddp.attach(model, gradwire.dgc(0.001, momentum=0.9))
>>> groups = gradwire.torch.optim.parameter_groups(handle)
>>> optimizer = gradwire.torch.optim.SGD(groups, lr=0.1, momentum=0.9, weight_decay=1e-4)
"""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
from torch.optim import Optimizer

from gradwire import _validate

if TYPE_CHECKING:
    from gradwire.torch.ddp import Handle

__all__ = ["SGD", "parameter_groups"]


class SGD(Optimizer):
    """Stochastic gradient descent that does not apply the codec's momentum again.

    A group with ``corrected=True`` is updated by ``grad + momentum(weight_decay * parameter)``, a
    group with ``corrected=False`` by ``momentum(grad + weight_decay * parameter)``, like
    `torch.optim.SGD`. With a codec that sends everything, both give the same result.

    Parameters
    ----------
    params : iterable of torch.Tensor or of dict
        Parameters, or groups of them; see `parameter_groups`.
    lr : float
        Learning rate, not negative.
    momentum : float
        Momentum of the weight decay, and of gradients if ``corrected`` is false;
        0 <= momentum < 1. Use the codec's value.
    weight_decay : float
        Weight decay, not negative.
    nesterov : bool
        Whether to use Nesterov's momentum. Use the codec's value.
    corrected : bool
        Whether momentum has already been applied to gradients; the default for groups that do not
        set it.

    Raises
    ------
    ValueError, TypeError
        A value out of range or of the wrong type.

    References
    ----------
    Lin, Han, Mao, Wang, Dally, "Deep Gradient Compression: Reducing the Communication Bandwidth for
    Distributed Training", ICLR 2018, section 3.2; weight decay as in the authors' code.
    """

    def __init__(
        self,
        params: Any,
        lr: float,
        *,
        momentum: float = 0.9,
        weight_decay: float = 0.0,
        nesterov: bool = False,
        corrected: bool = True,
    ) -> None:
        momentum = _validate.positive("momentum", momentum)
        if momentum >= 1.0:
            raise ValueError(f"momentum must be below 1, got {momentum!r}")
        defaults = {
            "lr": _validate.positive("lr", lr),
            "momentum": momentum,
            "weight_decay": _validate.positive("weight_decay", weight_decay),
            "nesterov": _validate.boolean("nesterov", nesterov),
            "corrected": _validate.boolean("corrected", corrected),
        }
        super().__init__(params, defaults)

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> float | None:  # type: ignore[override]
        """Update the parameters; return the result of the closure, if one is given."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    parameter.add_(self._update(parameter, group), alpha=-group["lr"])
        return loss

    def _update(self, parameter: torch.Tensor, group: dict[str, Any]) -> torch.Tensor:
        gradient, decay = parameter.grad, group["weight_decay"]
        assert gradient is not None
        if not group["corrected"]:
            return self._moved(parameter, gradient.add(parameter, alpha=decay), group)
        if decay == 0.0:
            return gradient
        return gradient + self._moved(parameter, decay * parameter, group)

    def _moved(
        self, parameter: torch.Tensor, step: torch.Tensor, group: dict[str, Any]
    ) -> torch.Tensor:
        """Return a step with momentum applied."""
        momentum = group["momentum"]
        if momentum == 0.0:
            return step
        state = self.state[parameter]
        if "momentum_buffer" not in state:
            state["momentum_buffer"] = torch.zeros_like(step)
        buffer: torch.Tensor = state["momentum_buffer"].mul_(momentum).add_(step)
        return step.add(buffer, alpha=momentum) if group["nesterov"] else buffer


def parameter_groups(handle: "Handle") -> list[dict[str, Any]]:
    """Return the parameters of an attached model, grouped by whether the codec applies momentum.

    Parameters
    ----------
    handle : gradwire.torch.ddp.Handle
        Handle of a codec with `gradwire.memory.MomentumCorrection`.

    Returns
    -------
    list of dict
        Groups for `SGD`: compressed parameters with ``corrected=True``, and those that are sent
        dense with ``corrected=False``. A group without parameters is left out.

    Raises
    ------
    ValueError
        The codec has no momentum correction, so any optimizer can be used.
    """
    if not handle.codec.memory.corrects:
        raise ValueError(
            f"{handle.codec!r} leaves momentum to the optimizer; use torch.optim.SGD or any other"
        )
    parameters = handle._parameters.values()
    groups = [
        {
            "params": [each.tensor for each in parameters if (each.state is not None) == corrected],
            "corrected": corrected,
        }
        for corrected in (True, False)
    ]
    return [group for group in groups if group["params"]]
