"""AdamW, for codecs that compute its steps themselves."""

from typing import Any

import torch

from gradwire.torch.optim.attachable import Attachable

__all__ = ["AdamW"]


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
