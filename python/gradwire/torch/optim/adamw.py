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
    lr : float or torch.Tensor
        Learning rate.
    betas : tuple of float
        Decay of the first and second moment. The first applies to parameters that are sent dense.
        The second must be the codec's ``beta2``.
    eps : float
        Added to the root of the second moment. It must be the codec's.
    weight_decay : float
        Decoupled weight decay.
    maximize : bool
        Ascend instead of descend.
    foreach : bool, optional
        Update all parameters of a group together. By default, steps of the codec are applied so,
        and the rest as torch chooses.
    fused : bool, optional
        Update what is sent dense by torch's fused kernel. On a CPU it takes a tenth of the time of
        what torch chooses by default. Loss scalers of torch unscale all gradients before a step
        nevertheless, because steps of the codec are not scaled.

    Raises
    ------
    ValueError
        A value out of range.
    RuntimeError
        Both ``foreach`` and ``fused``.

    References
    ----------
    Loshchilov, Hutter, "Decoupled Weight Decay Regularization", ICLR 2019; Chen, Shen, Liu, Luo,
    "Efficient-Adam: Communication-Efficient Distributed Adam", 2022, for moments of each rank's own
    and error feedback on their steps.
    """

    def __init__(
        self,
        params: Any,
        lr: float | torch.Tensor = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0.01,
        *,
        maximize: bool = False,
        foreach: bool | None = None,
        fused: bool | None = None,
    ) -> None:
        super().__init__(
            params,
            lr=lr,
            betas=betas,
            eps=eps,
            weight_decay=weight_decay,
            maximize=maximize,
            foreach=foreach,
            fused=fused,
        )
        self._step_supports_amp_scaling = False  # which torch says of a fused step

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
