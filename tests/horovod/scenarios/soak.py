"""What a soak drives: Horovod with a codec. See `tests.distributed.soak`."""

import contextlib

import numpy as np
import torch

import gradwire
import gradwire.torch.horovod as gh
from tests.distributed.scenarios.common import Given, gradients_of
from tests.distributed.soak import Soaked, Sums, chances


class Trainer(Soaked):
    """A `Soaked` of Horovod, with plain SGD.

    With a loss scaler, ``synchronize()`` comes first and ``step()`` skips it. Without one, the
    gradients of most steps are first waited for in ``step()``.
    """

    def __init__(self, codec: gradwire.Codec, *, scaled: bool, groups: int) -> None:
        self.takes = chances(codec, scaled=scaled)
        self.module = Given()
        self._scaled = scaled
        self._scaler = torch.amp.GradScaler("cpu", 2.0**8, growth_interval=5, enabled=scaled)
        self._optimizer = gh.DistributedOptimizer(
            torch.optim.SGD(self.module.parameters(), lr=2.0**-6),
            self.module.named_parameters(),
            groups=groups,
            codec=codec,
            grad_scaler=self._scaler if scaled else None,
        )
        self._handle = self._optimizer.handle
        self._waiting = False

    def backward(self, passes: list[dict[str, torch.Tensor]], *, paused: bool) -> bool:
        self._optimizer.set_backward_passes_per_step(len(passes))
        with self._handle.paused() if paused else contextlib.nullcontext():
            for each in passes:
                self._scaler.scale(self.module(each)).backward()
            self._waiting = True
            if paused or self._scaled:
                self._synchronize()
        return True

    def discard(self) -> None:
        self._synchronize()
        self._handle.discard()

    def step(self) -> Sums | None:
        self._waiting = False
        if not self._scaled:
            try:
                self._optimizer.step()
            except gh.GradientError:
                return None
            return gradients_of(self.module)
        self._scaler.unscale_(self._optimizer)
        averages = gradients_of(self.module)
        with self._optimizer.skip_synchronize():
            self._scaler.step(self._optimizer)
        self._scaler.update()
        finite = all(np.isfinite(each).all() for each in averages.values())
        return averages if finite else None

    def clear(self) -> None:
        self._synchronize()
        self._optimizer.zero_grad()

    def _synchronize(self) -> None:
        """Wait for gradients that are under way, also if they will be thrown away."""
        if self._waiting:
            self._waiting = False
            with contextlib.suppress(gh.GradientError):
                self._optimizer.synchronize()
