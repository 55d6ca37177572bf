"""The state of a parameter that is sent as low-rank factors."""

import base64
import functools
import zlib
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from gradwire import _validate
from gradwire.exchange.low_rank import LowRank
from gradwire.torch.backends.host import staging

FLOAT32: dict[str, Any] = {"dtype": torch.float32, "device": "cpu"}
"""Explicit, because the program may have changed torch's defaults."""


class LowRankState:
    """A residual and the last factor Q, both before and after the last step.

    It has the attributes and methods of `gradwire.State` that the engine uses. The name determines
    the first Q; ``keeps`` tells whether there is a residual. Both are on the device of the
    gradients; before the first gradient, the zero residual takes no memory.
    """

    def __init__(
        self, exchange: LowRank, shape: tuple[int, ...], name: str, *, keeps: bool
    ) -> None:
        self.rows, self.columns = exchange.matrix(shape)
        self.numel = self.rows * self.columns
        self.step = 0
        self.keeps = keeps
        self._exchange = exchange
        self._seed = zlib.crc32(name.encode())
        self._residual = torch.zeros(1, **FLOAT32).expand(self.numel) if keeps else None
        self._spare: torch.Tensor | None = None
        self._q: torch.Tensor | None = None
        self._before: tuple[int, torch.Tensor | None] | None = None

    def preload(self, device: torch.device) -> None:
        """Load the GPU kernels of both products, which cuBLAS chooses by their shapes.

        Otherwise they would load during a backward pass: see backends/cuda/preload.py.
        """
        matrix = torch.zeros(self.rows, self.columns, dtype=torch.float32, device=device)
        p = matrix @ self.first().to(device).T.contiguous().T
        (p.T.contiguous() @ matrix).sum().item()

    def matrix(self, gradient: torch.Tensor) -> torch.Tensor:
        """Return gradient plus residual: float32, shape (rows, columns), on the gradient's device.

        With error feedback the matrix is memory of the state: subtract the sent product from it,
        and `take` keeps the rest. The previous step can then no longer be undone.
        """
        self._before = None
        values = gradient.to(torch.float32)
        # A copy in any case: the gradient's memory is used for other things soon.
        if self._residual is None:
            matrix = values.clone()
        else:
            if self._spare is None or self._spare.device != values.device:
                self._residual = self._residual.to(values.device).contiguous()
                self._spare = torch.empty_like(self._residual)
            matrix = torch.add(values, self._residual, out=self._spare)
        return matrix.view(self.rows, self.columns)

    def first(self) -> torch.Tensor:
        """Return the initial Q, shape (columns, rank)."""
        if self._q is not None and self._exchange.warm_start:
            return self._q
        random = torch.Generator("cpu").manual_seed(self._seed + self.step)
        return torch.randn(self.columns, self._exchange.rank, generator=random, **FLOAT32)

    def take(self, q: torch.Tensor) -> None:
        """End a step: keep the remaining matrix, which was not sent, as the residual."""
        self._before = self.step, self._q
        self._residual, self._spare = self._spare, self._residual
        self._q = q
        self.step += 1

    def rollback(self) -> None:
        """Undo the last step; no effect if there is none to undo."""
        if self._before is None:
            return
        (self.step, self._q), self._before = self._before, None
        self._residual, self._spare = self._spare, self._residual

    @property
    def residual(self) -> NDArray[np.float32] | None:
        """The part that was not sent, flat; None without error feedback."""
        return None if self._residual is None else _on_host(self._residual).numpy().copy()

    @property
    def residual_norm(self) -> float | None:
        """The Euclidean norm of the residual."""
        if self._residual is None:
            return None
        norm = functools.partial(torch.linalg.vector_norm, dtype=torch.float64)
        return float(_on_host(self._residual, norm))

    @property
    def nbytes(self) -> int:
        """Bytes kept between steps."""
        kept = self._q, self._before and self._before[1]
        factors = sum(each.nbytes for each in kept if isinstance(each, torch.Tensor))
        return factors + (8 * self.numel if self.keeps else 0)

    def state_dict(self) -> dict[str, Any]:
        """Return everything that `load_state_dict` needs: arrays, numbers and text."""
        return {
            "step": self.step,
            "q": None if self._q is None else _text(_on_host(self._q)),
            "residual": self.residual,
            "momentum": None,
            "second_moment": None,
        }

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Restore a `state_dict`; raise, and change nothing, if it is invalid."""
        if not state_dict.keys() >= {"step", "q", "residual"}:
            raise ValueError(
                f"a state of LowRank has step, q and residual, got {sorted(state_dict)}"
            )
        step = _validate.integer("step", state_dict["step"], low=0, high=2**53)
        q = None if state_dict["q"] is None else self._read(state_dict["q"])
        residual = state_dict["residual"]
        if (residual is None) != (self._residual is None):
            raise ValueError("only one of the codec and the saved state has a residual")
        if residual is not None:
            loaded = _finite("residual", torch.from_numpy(np.array(residual, np.float32).ravel()))
            if loaded.numel() != self.numel:
                raise ValueError(f"a residual has {loaded.numel()} entries, expected {self.numel}")
            self._residual, self._spare = loaded, None
        self.step, self._q, self._before = step, q, None

    def _read(self, text: object) -> torch.Tensor:
        if not isinstance(text, str):
            raise TypeError(f"q must be text, got {text!r}")
        data = base64.b64decode(text, validate=True)
        if len(data) != 4 * self.columns * self._exchange.rank:
            raise ValueError(f"q has {len(data)} bytes, expected those of another rank or shape")
        q = torch.frombuffer(bytearray(data), dtype=torch.float32)
        return _finite("q", q).view(self.columns, -1)


def _on_host(
    values: torch.Tensor, act: Callable[[torch.Tensor], torch.Tensor] = torch.Tensor.detach
) -> torch.Tensor:
    """Copy a state's values to the host, after the stream that wrote them."""
    if values.is_cpu:
        return act(values)
    stage = staging(values.device)
    with stage.writing(stage.mark()):
        return stage.read(act(values))


def _text(values: torch.Tensor) -> str:
    return base64.b64encode(values.numpy().tobytes()).decode()


def _finite(what: str, values: torch.Tensor) -> torch.Tensor:
    if not bool(values.isfinite().all()):
        raise ValueError(f"{what} has values that are NaN or infinite: the state is damaged")
    return values
