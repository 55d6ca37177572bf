"""Optimizers that `gradwire.torch.ddp.attach` tells what the codec has done already.

>>> optimizer = gradwire.torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
>>> codec = gradwire.dgc(ratio=0.001, momentum=0.9)
>>> handle = gradwire.torch.ddp.attach(model, codec, optimizer=optimizer)

Not attached, each of them is the optimizer of torch that has its name: in what it takes, bit for
bit in what it does, and in its checkpoints.
"""

from typing import Any

import torch

from gradwire.torch.optim.attachable import Attachable

__all__ = ["SGD", "AdamW"]


class SGD(Attachable, torch.optim.SGD):
    """Stochastic gradient descent that does not apply the codec's momentum again.

    With `gradwire.memory.MomentumCorrection`, each rank applies momentum before it selects entries,
    so that the averaged gradient includes it. What is left to the optimizer is the momentum of
    weight decay, which no rank sends: it updates by ``grad + momentum(weight_decay * parameter)``.

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


class AdamW(Attachable, torch.optim.AdamW):
    """AdamW that applies the steps of `gradwire.memory.AdamCorrection` as they come.

    With that memory, each rank divides its own gradients by its own second moment before it selects
    entries. After the backward pass, ``.grad`` then holds the average of all ranks' steps, which
    include the learning rate; ``step()`` applies them, with decoupled weight decay::

        parameter = parameter * (1 - lr * weight_decay) - grad

    Parameters that are sent dense are updated as by `torch.optim.AdamW`, and so are all parameters
    without `gradwire.torch.ddp.attach`, or with a codec that has another memory.

    Learning rates are read when the backward pass hands over its first gradients. Change them
    between ``step()`` and the next backward pass, as schedulers do.

    Parameters
    ----------
    params : iterable of torch.Tensor or of dict
        Parameters, or groups of them. Without `attach`, in a loop that encodes and decodes by
        itself, a group with ``corrected=True`` holds steps of such a codec in ``.grad``.
    betas, eps
        As in `torch.optim.AdamW`. The first beta applies to parameters that are sent dense. The
        second, and ``eps``, must be the codec's.
    amsgrad, capturable, differentiable
        As in `torch.optim.AdamW`. `attach` refuses them with a codec that computes steps.
    foreach : bool, optional
        Update all parameters of a group together. By default, steps of the codec are applied so,
        and the rest as torch chooses.
    fused : bool, optional
        Update what is sent dense by torch's fused kernel. On a CPU it takes a tenth of the time of
        what torch chooses by default. Loss scalers of torch then unscale all gradients before a
        step of an attached optimizer, because steps of the codec are not scaled.
    lr, weight_decay, maximize
        As in `torch.optim.AdamW`.

    Raises
    ------
    ValueError, RuntimeError
        As `torch.optim.AdamW`.

    References
    ----------
    Loshchilov, Hutter, "Decoupled Weight Decay Regularization", ICLR 2019; Chen, Shen, Liu, Luo,
    "Efficient-Adam: Communication-Efficient Distributed Adam", 2022, for moments of each rank's own
    and error feedback on their steps.
    """

    def _apply(
        self, parameters: list[torch.Tensor], steps: list[torch.Tensor], group: dict[str, Any]
    ) -> None:
        keep = 1.0 - float(group["lr"]) * group["weight_decay"]
        sign = 1.0 if group["maximize"] else -1.0
        if group["foreach"] is False:
            for parameter, step in zip(parameters, steps, strict=True):
                parameter.mul_(keep).add_(step, alpha=sign)
            return
        torch._foreach_mul_(parameters, keep)
        torch._foreach_add_(parameters, steps, alpha=sign)
