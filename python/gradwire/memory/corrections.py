"""Momentum and Adam, applied on each rank before entries are selected; estimates of momentum."""

import dataclasses
import math
from collections.abc import Mapping
from typing import Annotated, Any, ClassVar

import numpy as np

from gradwire import _validate
from gradwire._validate import Check, Clip, Seed
from gradwire.memory.base import Memory

_Decay = Annotated[float, Check(_validate.positive, below=1)]


def _normal(name: str, value: object) -> float:
    number = _validate.real(name, value)
    if not float(np.finfo(np.float32).tiny) <= number < math.inf:
        raise ValueError(f"{name} must be above 0 and a normal float32, got {value!r}")
    return number


@dataclasses.dataclass(frozen=True, repr=False, kw_only=True)
class MomentumCorrection(Memory):
    """Apply momentum before entries are selected, and accumulate the result (DGC).

    With momentum ``u``, velocity ``v`` and tensor ``g``: ``u = momentum * u + g`` and
    ``v = v + u``, or with Nesterov's ``u = momentum * (u + g)`` and ``v = v + u + g``. Entries of
    ``v`` are sent and subtracted from it as the receiver decodes them.

    The optimizer must not apply momentum again: what it receives is already a step. Attached, a
    `torch.optim.SGD` does not; see `gradwire.torch.optim.adapt`.

    The state holds four float32 buffers of n elements, two pairs that swap on success. Every encode
    reads the tensor, ``u`` and ``v`` and writes ``u`` and ``v``; with ``clip`` it reads the tensor
    once more.

    Parameters
    ----------
    momentum : float, optional
        0 <= momentum < 1. None is that of the optimizer that is attached, or else 0.9.
    nesterov : bool, optional
        Nesterov's momentum. None is as the attached optimizer has it, or else False.
    masking : bool
        Also set ``u`` to zero where entries were sent, so that stale momentum does not keep pushing
        (momentum factor masking).
    clip : float, optional
        Euclidean norm to which ``g``, the gradient of this tensor on this rank, is scaled down
        first if it has a larger one. The paper clips that of the node's whole gradient, over all
        tensors, at N**-0.5 times the threshold for the sum over N nodes.

    References
    ----------
    Lin, Han, Mao, Wang, Dally, "Deep Gradient Compression: Reducing the Communication Bandwidth for
    Distributed Training", ICLR 2018, sections 3.2 (correction, clipping) and 3.3 (masking).
    """

    momentum: _Decay | None = None
    nesterov: bool | None = None
    masking: bool = True
    clip: Clip | None = None
    kind: ClassVar[str] = "momentum_correction"
    keeps: ClassVar[bool] = True
    corrects: ClassVar[bool] = True
    updates: ClassVar[bool] = False
    _OPTIMIZER_DEFAULTS: ClassVar[Mapping[str, Any]] = {"momentum": 0.9, "nesterov": False}


@dataclasses.dataclass(frozen=True, repr=False, kw_only=True)
class AdamCorrection(Memory):
    """Compute Adam's step from the gradient before entries are selected; keep the rest.

    With gradient ``g``, second moment ``v``, residual ``r`` and the learning rate ``lr`` of
    `gradwire.State.learning_rate`, the t-th encode computes ``v = beta2 * v + (1 - beta2) * g * g``
    and ``r = r + lr * g / (sqrt(v / (1 - beta2**t)) + eps)``. Entries of ``r`` are sent and
    subtracted from it as the receiver decodes them.

    The decoded values are an update: subtract it from the parameter, without another learning rate.
    An attached `torch.optim.AdamW` or ``Adam`` does, with decoupled weight decay. There is no first
    moment (beta1 is 0): an entry that waits in ``r`` gathers steps as a momentum would. Selection
    compares steps, so that every layer gets its share whatever the scale of its gradients, and
    ``v`` never sees the spikes that sparse gradients arrive in.

    A rank's gradients are noisier than the average of all ranks, by which steps are too short: of N
    ranks by up to the root of N. `gradwire.torch.ddp.attach` measures the ratio of the squares and
    divides the learning rate by its root, so that the rate of uncompressed training is right. Where
    nothing measures it, as with `gradwire.torch.all_reduce`, it counts as 1.

    The arithmetic is in float32, with each operation rounded separately. Whatever the gradients, no
    step is larger than Adam's bound, ``lr * sqrt((1 - beta2**t) / (1 - beta2))``: see
    docs/memory.md.

    The state holds four buffers of n elements, two pairs that swap on success; float32, or with
    ``low_memory`` bfloat16. Every encode reads the tensor, ``v`` and ``r`` and writes ``v`` and
    ``r``.

    Parameters
    ----------
    beta2 : float, optional
        Decay of the second moment, 0 <= beta2 < 1. None is that of the optimizer that is attached,
        or else 0.999.
    eps : float, optional
        Added to the square root of the second moment; above 0 and a normal float32 (1.2e-38 at
        least). None is that of the attached optimizer, or else 1e-8.
    low_memory : bool
        Keep ``v`` and ``r`` in bfloat16, rounded stochastically as `Residual` rounds: 8 bytes per
        element instead of 16. ``v`` then has the mean that it has in float32; docs/memory.md says
        how far it deviates from it.
    seed : int
        Seed of that rounding, as of `Residual`; ``v`` and ``r`` draw different numbers.

    References
    ----------
    Kingma, Ba, "Adam: A Method for Stochastic Optimization", ICLR 2015: algorithm 1, and
    section 2.1 for the bound.

    Chen, Shen, Liu, Luo, "Efficient-Adam: Communication-Efficient Distributed Adam", arXiv 2022:
    with error feedback.
    """

    beta2: _Decay | None = None
    eps: Annotated[float, Check(_normal)] | None = None
    low_memory: bool = False
    seed: Seed = 0
    kind: ClassVar[str] = "adam_correction"
    keeps: ClassVar[bool] = True
    corrects: ClassVar[bool] = False
    updates: ClassVar[bool] = True
    _KEPT_AS: ClassVar[tuple[str, ...]] = ("low_memory", "seed")
    _OPTIMIZER_DEFAULTS: ClassVar[Mapping[str, Any]] = {"beta2": 0.999, "eps": 1e-8}


@dataclasses.dataclass(frozen=True, repr=False, kw_only=True)
class Estimate(Memory):
    """Send what changes of an estimate of each rank's momentum, for Muon (EF21).

    With momentum ``m``, tensor ``g`` and estimate ``h``: ``m = momentum * m + (1 - momentum) * g``,
    and entries of ``t - h`` are sent, where ``t`` is ``m``, or with Nesterov's momentum ``momentum
    * m + (1 - momentum) * g``. What is sent is added to ``h`` as the receiver decodes it; the rest
    needs no residual, because the next ``t - h`` contains it. The mean of what all ranks have sent
    changes the mean of their estimates, which `gradwire.State.deliver` keeps.

    Attached, ``.grad`` holds that mean, the same on all ranks, and `torch.optim.Muon` makes it
    orthogonal. It does not apply its momentum again, and the length of gradients has no effect.

    The state holds six float32 buffers of n elements: three pairs that swap on success. Every
    encode reads the tensor, ``m`` and ``h`` and writes ``m`` and ``h``. They are not kept in
    bfloat16, because no other rank would know what ``h`` is rounded to.

    Parameters
    ----------
    momentum : float, optional
        0 <= momentum < 1. None is that of the optimizer that is attached, or else 0.95. Attached,
        it follows the optimizer's, from one step to the next.
    nesterov : bool, optional
        Nesterov's momentum. None is as the attached optimizer has it, or else True.

    References
    ----------
    Richtárik, Sokolov, Fatkhullin, "EF21: A New, Simpler, Theoretically Better, and Practically
    Faster Error Feedback", NeurIPS 2021.

    Gruntkowska, Gaponov, Tovmasyan, Richtárik, "Error Feedback for Muon and Friends", arXiv
    2510.00643 (2025).
    """

    momentum: _Decay | None = None
    nesterov: bool | None = None
    kind: ClassVar[str] = "estimate"
    keeps: ClassVar[bool] = True
    corrects: ClassVar[bool] = True
    updates: ClassVar[bool] = False
    estimates: ClassVar[bool] = True
    _OPTIMIZER_DEFAULTS: ClassVar[Mapping[str, Any]] = {"momentum": 0.95, "nesterov": True}
