"""The momentum correction of Deep Gradient Compression."""

import dataclasses
from typing import ClassVar

from gradwire import _validate
from gradwire.memory.base import Memory

__all__ = ["MomentumCorrection"]


@dataclasses.dataclass(frozen=True, repr=False, kw_only=True)
class MomentumCorrection(Memory):
    """Apply momentum before entries are selected, and accumulate the result (DGC).

    With momentum ``u``, velocity ``v`` and tensor ``g``: ``u = momentum * u + g`` and
    ``v = v + u``, or with Nesterov's ``u = momentum * (u + g)`` and ``v = v + u + g``. Entries of
    ``v`` are sent and subtracted from it as the receiver decodes them.

    The optimizer must not apply momentum again: what it receives is already a step. Use
    `gradwire.torch.optim.SGD` with the same momentum, or an optimizer without.

    The state holds four float32 buffers of n elements, two pairs that swap on success. Every encode
    reads the tensor, ``u`` and ``v`` and writes ``u`` and ``v``; with ``clip`` it reads the tensor
    once more.

    Parameters
    ----------
    momentum : float
        0 <= momentum < 1.
    nesterov : bool
        Nesterov's momentum.
    masking : bool
        Also set ``u`` to zero where entries were sent, so that stale momentum does not keep pushing
        (momentum factor masking).
    clip : float, optional
        Maximum Euclidean norm of ``g``, the gradient of this tensor on this rank; if its norm is
        larger, ``g`` is scaled down first. The paper clips a different norm: that of the node's
        whole gradient, over all tensors, at N**-0.5 times the threshold for the sum over N nodes.

    References
    ----------
    Lin, Han, Mao, Wang, Dally, "Deep Gradient Compression: Reducing the Communication Bandwidth for
    Distributed Training", ICLR 2018, sections 3.2 (correction, clipping) and 3.3 (masking).
    """

    momentum: float = 0.9
    nesterov: bool = False
    masking: bool = True
    clip: float | None = None
    kind: ClassVar[str] = "momentum_correction"
    keeps: ClassVar[bool] = True
    corrects: ClassVar[bool] = True
    updates: ClassVar[bool] = False
    undoable: ClassVar[bool] = True

    def __post_init__(self) -> None:
        momentum = _validate.positive("momentum", self.momentum)
        if momentum >= 1.0:
            raise ValueError(f"momentum must be below 1, got {self.momentum!r}")
        self._set("momentum", momentum)
        _validate.boolean("nesterov", self.nesterov)
        _validate.boolean("masking", self.masking)
        if self.clip is not None:
            clip = _validate.positive("clip", self.clip)
            if clip == 0.0:
                raise ValueError("clip must be greater than 0, got 0: pass None for no clipping")
            self._set("clip", clip)
