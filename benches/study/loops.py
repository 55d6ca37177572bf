"""DDP with each method of the study, as real ranks train with it."""

import time
import warnings
from collections.abc import Iterator, Mapping
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.algorithms.ddp_comm_hooks import debugging_hooks
from torch.distributed.algorithms.ddp_comm_hooks.powerSGD_hook import powerSGD_hook
from torch.nn.parallel import DistributedDataParallel

from benches.accuracy.methods import ADAMW, SGD
from benches.compare.hooks import power_state
from benches.harness.half import half_hook
from gradwire import Codec
from gradwire.schedule import Constant
from gradwire.torch import ddp, optim

from . import methods

WHOLE = 128.0
"""MiB that hold all of any model: torch's PowerSGD hook hangs on Gloo with two buckets."""

MAX_RATIO = 0.01
"""The least share of the entries that ``"auto"`` may send: what docs/accuracy.md recommends."""

RATE = 1e-6  # nobody looks at the weights of a model that is only timed


def optimizer_for(
    parameters: Iterator[nn.Parameter], family: str, codec: Codec | None, rate: float
) -> torch.optim.Optimizer:
    """Return the optimizer that is recommended: of gradwire where the codec computes steps."""
    memory = None if codec is None else codec.memory
    options: dict[str, Any] = dict(ADAMW if family == "adamw" else SGD)
    if memory is not None and memory.updates:
        return optim.AdamW(parameters, lr=rate, fused=True, **options)
    if family == "adamw":
        return torch.optim.AdamW(parameters, lr=rate, fused=True, **options)
    if codec is not None and codec.sparsify.selects:
        options["momentum"] = 0.0
    return torch.optim.SGD(parameters, lr=rate, **options)


class Loop:
    """A model that trains with one method.

    Attributes
    ----------
    model : DistributedDataParallel
    optimizer : torch.optim.Optimizer
    handle : gradwire.torch.ddp.Handle or None
    """

    def __init__(
        self,
        module: nn.Module,
        family: str,
        method: str,
        *,
        bucket: float | None = None,
        rate: float = RATE,
        attached: Mapping[str, Any] | None = None,
    ) -> None:
        whole = WHOLE if method == methods.TORCH_POWER else bucket
        self.model = DistributedDataParallel(
            module, bucket_cap_mb=whole, gradient_as_bucket_view=True
        )
        codec = methods.CODECS.get(method)
        auto = method == methods.AUTO
        # "auto" chooses what suits the optimizer: it gets that of adam, or what topk takes.
        suited = methods.CODECS[methods.AUTO_LIKE[family]] if auto else codec
        self.optimizer = optimizer_for(self.model.parameters(), family, suited, rate)
        self.handle: Any = None
        if method == methods.NONE:
            self.model.register_comm_hook(None, debugging_hooks.noop_hook)
        elif method == methods.BF16:
            self.model.register_comm_hook(None, half_hook)
        elif method == methods.TORCH_POWER:
            self.model.register_comm_hook(power_state(None, methods.POWER), powerSGD_hook)
        elif auto:
            self.decide_anew()
        elif codec is not None:
            options = {"schedule": Constant(), **(attached or {})}
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", ddp.PairingWarning)
                self.handle = ddp.attach(self.model, codec, optimizer=self.optimizer, **options)
        self._method = method

    def decide_anew(self) -> None:
        """Have ``auto`` begin as in a run of its own. A collective."""
        self.close()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ddp.PairingWarning)
            self.handle = ddp.attach(
                self.model,
                "auto",
                optimizer=self.optimizer,
                max_ratio=MAX_RATIO,
                schedule=Constant(),
            )

    def step(self, task: Any, batch: tuple[Tensor, ...]) -> None:
        """Train one step."""
        self.optimizer.zero_grad()
        task.loss(self.model, batch).backward()
        self.optimizer.step()

    def timed(self, task: Any, batches: list[tuple[Tensor, ...]]) -> dict[str, float]:
        """Return the seconds of a step, and of the processor in it, over some steps."""
        dist.barrier()
        began, worked = time.perf_counter(), time.process_time()
        for batch in batches:
            self.step(task, batch)
        count = len(batches)
        return {
            "seconds": (time.perf_counter() - began) / count,
            "cpu": (time.process_time() - worked) / count,
        }

    def nbytes(self) -> float:
        """Return the bytes that a rank sends in a step, as payload."""
        if self.handle is not None:
            return float(self.handle.report(residuals=False).wire_bytes)
        ranks = dist.get_world_size()
        ring = 2 * (ranks - 1) / ranks
        shapes = [each.shape for each in self.model.parameters()]
        numel = sum(shape.numel() for shape in shapes)
        if self._method == methods.NONE:
            return 0.0
        if self._method == methods.TORCH_POWER:
            sent = 0
            for shape in shapes:
                rows = shape[0] if len(shape) else 1
                columns = shape.numel() // max(1, rows)
                factors = (rows + columns) * min(methods.POWER, rows, columns)
                small = len(shape) > 1 and 2 * factors < shape.numel()  # the hook's own rule
                sent += factors if small else shape.numel()
            return ring * 4 * sent
        return ring * numel * (2 if self._method == methods.BF16 else 4)

    def said(self) -> str:
        """Return what ``auto`` says of its decision."""
        if self._method != methods.AUTO:
            return ""
        return str(self.handle.report(residuals=False).decision)

    def close(self) -> None:
        """Take the method off the model. A collective."""
        if self.handle is not None:
            self.handle.detach()
            self.handle = None  # or its buffers stay until there is another one
