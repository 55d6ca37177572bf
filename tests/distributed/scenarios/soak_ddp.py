"""What a soak drives: DDP with a codec."""

import contextlib

import numpy as np
import torch
from torch.nn.parallel import DistributedDataParallel

import gradwire
import gradwire.torch.ddp
from gradwire.torch.ddp import GradientError
from tests.distributed.scenarios.common import SMALL_BUCKETS, Given, gradients_of
from tests.distributed.scenarios.soak import Soaked, Sums, chances


class Trainer(Soaked):
    """A `soak.Soaked` of DDP, with plain SGD."""

    def __init__(self, codec: gradwire.Codec, *, scaled: bool) -> None:
        self.takes = chances(codec, scaled=scaled)
        self.module = Given()
        self._model = DistributedDataParallel(
            self.module, bucket_cap_mb=SMALL_BUCKETS, find_unused_parameters=True
        )
        self._optimizer = torch.optim.SGD(self.module.parameters(), lr=2.0**-6)
        self._scaler = torch.amp.GradScaler("cpu", 2.0**8, growth_interval=5, enabled=scaled)
        self._handle = gradwire.torch.ddp.attach(
            self._model,
            codec,
            optimizer=self._optimizer,
            grad_scaler=self._scaler if scaled else None,
        )

    def backward(self, passes: list[dict[str, torch.Tensor]], *, paused: bool) -> bool:
        with self._model.no_sync():
            for each in passes[:-1]:
                self._scaler.scale(self._model(each)).backward()
        with self._handle.paused() if paused else contextlib.nullcontext():
            loss = self._scaler.scale(self._model(passes[-1]))
            try:
                loss.backward()
            except GradientError:
                return False
        return True

    def step(self) -> Sums | None:
        self._scaler.unscale_(self._optimizer)
        averages = gradients_of(self.module)
        self._scaler.step(self._optimizer)
        self._scaler.update()
        finite = all(np.isfinite(each).all() for each in averages.values())
        return averages if finite else None
