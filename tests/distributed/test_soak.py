"""Training under random faults, restarts and changes of the number of ranks. See `soak`."""

import contextlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.nn.parallel import DistributedDataParallel

import gradwire
import gradwire.torch.ddp
from gradwire.quantize import Uniform
from gradwire.torch.ddp import GradientError
from tests.distributed.codecs import CODECS
from tests.distributed.ranks import Nursery, Ranks
from tests.distributed.scenarios.common import SMALL_BUCKETS, Given, gradients_of
from tests.distributed.soak import Soaked, Sums, chances, soak

ROUNDED = gradwire.topk(ratio=0.05, quantize=Uniform(norm="max"))
SETTINGS: dict[str, dict[str, Any]] = {
    "topk": {"codec": CODECS["default"], "scaled": True},
    "bfloat16": {"codec": CODECS["narrow"], "scaled": True},
    "errors": {"codec": gradwire.sidco(ratio=0.05), "scaled": False},
    "rounded": {"codec": ROUNDED, "scaled": True},
}
ERRORS = {"rounded": 2e-5, "bfloat16": 2.0**-8}
"""Sums of what is rounded are not exact; a residual in bfloat16 is off by 2**-8 of it a step."""
NOT_TAKEN = {"errors": {"loss scale"}}


class Trainer(Soaked):
    """A `Soaked` of DDP, with plain SGD."""

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


def run(nursery: Nursery, folder: Path, name: str, steps: int, worlds: list[int]) -> None:
    print(f"DDP, {name}: ", end="")
    soak(
        lambda world_size: Ranks(nursery, world_size),
        folder,
        steps,
        worlds,
        trainer=__name__,
        setting=SETTINGS[name],
        error=ERRORS.get(name, 0.0),
        without=NOT_TAKEN.get(name, set()),
    )


@pytest.mark.full
@pytest.mark.parametrize("name", SETTINGS)
def test_replicas_stay_equal_and_nothing_is_lost(
    nursery: Nursery, tmp_path: Path, name: str
) -> None:
    run(nursery, tmp_path, name, 25, [3, 3, 2, 3])


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("name", SETTINGS)
def test_so_it_is_over_two_thousand_steps(nursery: Nursery, tmp_path: Path, name: str) -> None:
    """Some minutes; run by ``make soak``."""
    worlds = [3] * 6 + [2] * 3 + [3] * 5 + [2] * 3 + [3] * 3
    run(nursery, tmp_path, name, 2000, worlds)
