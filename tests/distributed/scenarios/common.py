"""Models whose gradients are known, and what every scenario needs."""

import contextlib
import hashlib
import io
import json
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from typing import Any
from unittest import mock

import numpy as np
import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.optim import AdamW

import gradwire.torch.ddp
from gradwire.torch.ddp import Handle
from tests.deadlines import expires
from tests.distributed.ranks import alike, together

SMALL_BUCKETS = 0.01  # MiB: every weight below gets a bucket of its own once DDP rebuilds them

Shapes = dict[str, tuple[int, ...]]
SHAPES: Shapes = {"a": (64, 40), "b": (50, 30), "bias": (40,), "c": (1200,), "scalar": ()}


class Given(nn.Module):
    """Parameters whose gradients are exactly the tensors that forward is given.

    A parameter that is given nothing is not used. With integers for gradients every sum is exact,
    so that a test can ask for equality where rounding would force a tolerance.
    """

    def __init__(
        self,
        dtypes: dict[str, torch.dtype] | None = None,
        shapes: Shapes = SHAPES,
    ) -> None:
        super().__init__()
        for name, shape in shapes.items():
            values = torch.zeros(shape, dtype=(dtypes or {}).get(name, torch.float32))
            if name == "turned":  # a matrix whose rows are not contiguous
                values = torch.zeros(shape[::-1]).T
            self.register_parameter(name, nn.Parameter(values))

    def forward(self, gradients: dict[str, torch.Tensor]) -> torch.Tensor:
        named = dict(self.named_parameters())
        terms = [(named[name] * each).sum().double() for name, each in gradients.items()]
        return torch.stack(terms).sum()


class Sums:
    """What this rank has given since the first step, and what was applied on it for all ranks."""

    def __init__(self) -> None:
        self.given: dict[str, Any] = {}
        self.applied: dict[str, Any] = {}

    def give(self, gradients: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        """Count what goes into a backward pass."""
        for name, each in gradients.items():
            self.given[name] = self.given.get(name, 0.0) + each.double().numpy().ravel()
        return gradients

    def take(self, module: nn.Module) -> None:
        """Count the averages that have come out of it."""
        for name, average in gradients_of(module).items():
            added = average * torch.distributed.get_world_size()
            self.applied[name] = self.applied.get(name, 0.0) + added

    def check(self, left: dict[str, Any], tolerance: float = 0.0) -> None:
        """What all ranks gave was applied, or is left in a residual: if none is told, exactly."""
        every = together((self.given, left))
        for name in every[0][0]:
            given = sum(each.get(name, 0.0) for each, _ in every)
            rest = sum(each.get(name, 0.0) for _, each in every)
            found = self.applied[name] + rest
            np.testing.assert_allclose(found, given, rtol=0, atol=tolerance, err_msg=name)


def integers(
    seed: int,
    rank: int,
    step: int,
    names: Any = None,
    shapes: Shapes = SHAPES,
) -> dict[str, torch.Tensor]:
    """Small integers, other ones on each rank and step; few of them large, as gradients have it."""
    random = np.random.default_rng([seed, rank, step])
    made = {}
    for name, shape in shapes.items():
        values = random.integers(-8, 9, shape) * np.where(random.random(shape) < 0.05, 16, 1)
        made[name] = torch.from_numpy(np.asarray(values, np.float32))
    return {name: made[name] for name in (shapes if names is None else names)}


def network(seed: int = 0) -> nn.Sequential:
    """A small network with weights worth compressing, biases and a norm."""
    torch.manual_seed(seed)
    return nn.Sequential(
        nn.Linear(32, 96),
        nn.LayerNorm(96),
        nn.GELU(),
        nn.Linear(96, 64),
        nn.Tanh(),
        nn.Linear(64, 16),
    )


def batch(rank: int, step: int, rows: int = 8) -> tuple[torch.Tensor, torch.Tensor]:
    """Inputs and targets, other ones on each rank and step."""
    random = torch.Generator().manual_seed(1000 * step + rank)
    return (
        torch.randn(rows, 32, generator=random),
        torch.randn(rows, 16, generator=random),
    )


def train(
    model: nn.Module,
    rank: int,
    steps: range,
    *,
    lr: float = 0.05,
    scaler: Any = None,
    optimizer: Any = None,
) -> None:
    """Plain SGD: no state of its own, so that a resume has nothing else to restore."""
    if optimizer is None:
        optimizer = torch.optim.SGD(model.parameters(), lr=lr)
    for step in steps:
        inputs, targets = batch(rank, step)
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(model(inputs), targets)
        if scaler is None:
            loss.backward()
            optimizer.step()
        else:
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()


@contextlib.contextmanager
def attached(
    module: nn.Module, codec: Any, *, options: dict[str, Any] | None = None, **ddp: Any
) -> Iterator[tuple[DistributedDataParallel, Handle]]:
    """A DDP model with a codec, detached at the end."""
    model = DistributedDataParallel(module, **ddp)
    handle = gradwire.torch.ddp.attach(model, codec, **(options or {}))
    try:
        yield model, handle
    finally:
        handle.detach()


def adamw(parameters: Any) -> AdamW:
    """An optimizer for codecs that compute its steps."""
    return AdamW(parameters, lr=0.01)


class Run:
    """A model in training with DDP, a codec, and an optimizer, of which `attach` is told.

    ``make`` makes the optimizer of the parameters, ``ddp`` are options of DDP, and all others are
    options of `attach`.
    """

    def __init__(
        self,
        codec: Any,
        make: Callable[..., Any] = adamw,
        *,
        module: nn.Module | None = None,
        seed: int = 0,
        ddp: dict[str, Any] | None = None,
        **options: Any,
    ) -> None:
        self.module = network(seed) if module is None else module
        self.model = DistributedDataParallel(
            self.module, **{"bucket_cap_mb": SMALL_BUCKETS, **(ddp or {})}
        )
        self.optimizer = make(self.module.parameters())
        options = {"optimizer": self.optimizer, **options}
        self.handle = gradwire.torch.ddp.attach(self.model, codec, **options)

    def backward(self, rank: int, step: int, *, exchange: bool = True) -> None:
        """Add the gradients of a batch, within ``no_sync()`` where they are not to be exchanged."""
        with contextlib.nullcontext() if exchange else self.model.no_sync():
            inputs, targets = batch(rank, step)
            nn.functional.mse_loss(self.model(inputs), targets).backward()

    def train(self, rank: int, steps: Iterable[int], *, exchange: bool = True) -> None:
        """Take steps with the optimizer."""
        for step in steps:
            self.optimizer.zero_grad()
            self.backward(rank, step, exchange=exchange)
            self.optimizer.step()

    def parameter(self, name: str = "0.weight") -> Any:
        """What the engine has of a parameter: its codec and its state."""
        return self.handle._parameters[name]

    def state(self) -> tuple[str, list[Any]]:
        """The bits of the parameters, and those of a checkpoint."""
        return fingerprint(self.module), plain(self.handle.state_dict())

    def save(self) -> bytes:
        """Write a file of this rank."""
        file = io.BytesIO()
        torch.save({name: each.state_dict() for name, each in self._halves().items()}, file)
        return file.getvalue()

    def load(self, saved: bytes) -> None:
        """Read a file of `save`."""
        states = torch.load(io.BytesIO(saved), weights_only=True)
        for name, each in self._halves().items():
            each.load_state_dict(states[name])

    def _halves(self) -> dict[str, Any]:
        return {"model": self.module, "optimizer": self.optimizer, "gradwire": self.handle}

    def end(self) -> str:
        """Detach; return the bits of the parameters, which all ranks must have."""
        self.handle.detach()
        return str(alike(fingerprint(self.module)))

    def __enter__(self) -> "Run":
        return self

    def __exit__(self, *raised: object) -> None:
        self.handle.detach()


@contextlib.contextmanager
def counted(owner: Any, names: Iterable[str]) -> Iterator[Counter[str]]:
    """Count the calls of functions of a module or class, by name."""
    calls: Counter[str] = Counter()

    def counting(name: str) -> Callable[..., Any]:
        real = getattr(owner, name)

        def call(*arguments: Any, **keywords: Any) -> Any:
            calls[name] += 1
            return real(*arguments, **keywords)

        return call

    with contextlib.ExitStack() as stack:
        for name in names:
            stack.enter_context(mock.patch.object(owner, name, counting(name)))
        yield calls


def reaches(condition: Callable[[], bool], seconds: float = 60.0) -> bool:
    """Wait for what other threads bring about; return whether it came true in so many seconds."""
    began = time.monotonic()
    while not condition():
        if expires(began, seconds):
            return False
        time.sleep(0.05)
    return True


def fingerprint(module: nn.Module) -> str:
    """A hash over the bits of all parameters."""
    digest = hashlib.sha256()
    for name, parameter in sorted(module.named_parameters()):
        digest.update(name.removeprefix("module.").encode())
        digest.update(parameter.detach().contiguous().view(-1).view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()


def residuals(handle: Handle) -> dict[str, np.ndarray]:
    """Every residual that there is, by parameter name, flat."""
    (saved,) = handle.state_dict().values()
    return {name: each.float().numpy().ravel() for name, each in saved["residual"].items()}


def bits_left(handle: Handle) -> dict[str, bytes]:
    """The bits of every residual, to be compared."""
    return {name: each.tobytes() for name, each in residuals(handle).items()}


def about(state_dict: dict[str, Any]) -> dict[str, Any]:
    """All that is no tensor in the checkpoint of one rank."""
    (saved,) = state_dict.values()
    read: dict[str, Any] = json.loads(saved["about"])
    return read


def changed(state_dict: dict[str, Any], **values: Any) -> dict[str, Any]:
    """A checkpoint of one rank in which something else is said."""
    ((_, saved),) = state_dict.items()
    read = about(state_dict) | values
    return {f"rank{read['rank']}": {**saved, "about": json.dumps(read)}}


def bits(values: torch.Tensor) -> bytes:
    """The bytes of a tensor of any type."""
    return bytes(values.contiguous().flatten().view(torch.uint8).numpy())


def plain(state_dict: dict[str, Any]) -> list[Any]:
    """The bits of a checkpoint, to be compared."""
    return [
        (rank, kind, values)
        if isinstance(values, str)
        else (rank, kind, [(name, bits(each)) for name, each in values.items()])
        for rank, saved in state_dict.items()
        for kind, values in saved.items()
    ]


def gradients_of(module: nn.Module) -> dict[str, np.ndarray]:
    """Every gradient that is there, flat, in float64."""
    return {
        name: each.grad.detach().double().numpy().ravel()
        for name, each in module.named_parameters()
        if each.grad is not None
    }
