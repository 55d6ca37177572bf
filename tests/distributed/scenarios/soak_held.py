"""What the trainers of a soak have in common: what they hold, save and load."""

from typing import Any

import numpy as np
import torch

from tests.distributed.scenarios.common import residuals
from tests.distributed.scenarios.soak import Sums


class Held:
    """A model, its optimizer, loss scaler and handle."""

    module: torch.nn.Module
    _optimizer: Any
    _scaler: torch.amp.GradScaler
    _handle: Any

    def set_scale(self, scale: float) -> None:
        self._scaler.load_state_dict({**self._scaler.state_dict(), "scale": scale})

    def residuals(self) -> Sums:
        return {name: each.astype(np.float64) for name, each in residuals(self._handle).items()}

    def state_dict(self) -> dict[str, Any]:
        return {
            "model": self.module.state_dict(),
            "optimizer": self._optimizer.state_dict(),
            "scaler": self._scaler.state_dict(),
            "handle": self._handle.state_dict(),
        }

    def load(self, saved: list[dict[str, Any]]) -> None:
        self.module.load_state_dict(saved[0]["model"])
        self._optimizer.load_state_dict(saved[0]["optimizer"])
        self._scaler.load_state_dict(saved[0]["scaler"])
        self._handle.load_state_dict([each["handle"] for each in saved])

    def close(self) -> None:
        self._handle.detach()
