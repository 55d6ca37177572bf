"""SGD, for codecs that apply momentum themselves."""

from typing import Any

import torch

from gradwire.torch.optim.attachable import Attachable

__all__ = ["SGD"]


class SGD(Attachable, torch.optim.SGD):
    """Stochastic gradient descent that does not apply the codec's momentum again.

    With `gradwire.memory.MomentumCorrection`, each rank applies momentum before it selects entries.
    The averaged gradient then includes momentum. What is left to the optimizer is the momentum of
    weight decay, which no rank sends: such a parameter is updated by
    ``grad + momentum(weight_decay * parameter)``.

    Parameters that are sent dense are updated by ``momentum(grad + weight_decay * parameter)``, as
    by `torch.optim.SGD`, and so are all parameters without `gradwire.torch.ddp.attach`, or with a
    codec that has another memory. With a codec that sends everything, both give the same result.

    Parameters
    ----------
    params : iterable of torch.Tensor or of dict
        Parameters, or groups of them. Without `attach`, in a loop that encodes and decodes by
        itself, a group with ``corrected=True`` holds gradients with momentum in ``.grad``.
    momentum, nesterov
        As in `torch.optim.SGD`: without momentum by default. Both must be the codec's, if that
        has momentum.
    dampening, differentiable
        As in `torch.optim.SGD`. `attach` refuses them with a codec that applies momentum.
    lr, weight_decay, maximize, foreach, fused
        As in `torch.optim.SGD`.

    Raises
    ------
    ValueError, RuntimeError
        As `torch.optim.SGD`.

    References
    ----------
    Lin, Han, Mao, Wang, Dally, "Deep Gradient Compression: Reducing the Communication Bandwidth for
    Distributed Training", ICLR 2018, section 3.2; weight decay as in the authors' code.
    """

    def _apply(
        self, parameters: list[torch.Tensor], steps: list[torch.Tensor], group: dict[str, Any]
    ) -> None:
        rate, decay = float(group["lr"]), group["weight_decay"]
        # Weight decay pulls towards zero, whether the rest ascends or descends.
        sign = -1.0 if group["maximize"] else 1.0
        for parameter, step in zip(parameters, steps, strict=True):
            if decay != 0.0:
                step = sign * step + self._moved(parameter, decay * parameter, group)
                parameter.sub_(step, alpha=rate)
            else:
                parameter.sub_(step, alpha=sign * rate)

    def _moved(
        self, parameter: torch.Tensor, step: torch.Tensor, group: dict[str, Any]
    ) -> torch.Tensor:
        """Return a step with momentum applied."""
        momentum = group["momentum"]
        if momentum == 0.0:
            return step
        state = self.state[parameter]
        if state.get("momentum_buffer") is None:
            state["momentum_buffer"] = torch.zeros_like(step)
        buffer: torch.Tensor = state["momentum_buffer"].mul_(momentum).add_(step)
        return step.add(buffer, alpha=momentum) if group["nesterov"] else buffer
