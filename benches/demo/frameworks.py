"""The methods under comparison, and DDP, which exchanges gradients by them; Horovod is beside it.

``none``, ``bf16`` and ``fp16`` are a framework's own. Every other name is a preset of gradwire,
looked up by name, so that a new preset needs no change here.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.algorithms.ddp_comm_hooks import debugging_hooks
from torch.nn.parallel import DistributedDataParallel

from benches.harness.rank_process import form_group
from benches.harness.tasks import half_hook
from gradwire._codec import Codec
from gradwire.schedule import Constant
from gradwire.torch import ddp

OWN = ("compute", "none", "bf16", "fp16")
"""Methods without a codec; ``compute`` exchanges nothing: an upper bound for what can be gained."""

BUCKET_MB = 1
"""The same buckets for every method: two per model, so that DDP can overlap the first with the rest
of the backward pass."""


@dataclass(frozen=True)
class Prepared:
    """A model and its optimizer, whose gradients are exchanged by a method.

    ``nbytes`` is what a rank sends in a step of a method without a codec; a codec has a handle.
    """

    model: nn.Module
    optimizer: torch.optim.Optimizer
    nbytes: float = 0.0
    handle: ddp.Handle | None = None

    def traffic(self) -> dict[str, Any]:
        """Return payload a step, entries sent over those asked for, and what the codec reports."""
        if self.handle is None:
            return {"bytes_per_step": self.nbytes, "achieved": None, "detail": {}}
        report = self.handle.report()
        names = ("encode_ms", "exchange_ms", "decode_ms", "wait_ms", "slot_use", "residual_norm")
        detail = {"codec": report.codec, **{name: getattr(report, name) for name in names}}
        return {"bytes_per_step": report.wire_bytes, "achieved": report.achieved, "detail": detail}

    def detach(self) -> None:
        """Release what the exchange holds."""
        if self.handle is not None:
            self.handle.detach()


class Framework(ABC):
    """The ranks as one of them sees them; all but ``prepare`` of a baseline are collectives."""

    rank: int
    versions: dict[str, str]

    @abstractmethod
    def prepare(
        self, module: nn.Module, optimizer: Any, method: str, codec: Codec | None
    ) -> Prepared:
        """Make the gradients of a new model be exchanged by a method."""

    @abstractmethod
    def barrier(self) -> None:
        """Wait for all ranks."""

    @abstractmethod
    def total(self, tensor: Tensor) -> Tensor:
        """Return the sum over all ranks."""

    @abstractmethod
    def gather(self, value: Any) -> list[Any]:
        """Return the values of all ranks."""

    def broadcast(self, value: Any, source: int) -> Any:
        """Return the value of one rank on every rank."""
        return self.gather(value if self.rank == source else None)[source]


class DDP(Framework):
    """Ranks of `torch.distributed` over Gloo."""

    def __init__(self, setup: dict[str, Any]) -> None:
        form_group(setup, seconds=120)
        self.rank, self.versions = setup["rank"], {}

    def prepare(
        self, module: nn.Module, optimizer: Any, method: str, codec: Codec | None
    ) -> Prepared:
        model = DistributedDataParallel(
            module, bucket_cap_mb=BUCKET_MB, gradient_as_bucket_view=True
        )
        if codec is not None:
            handle = ddp.attach(model, codec, optimizer=optimizer, schedule=Constant())
            return Prepared(model, optimizer, handle=handle)
        dense = dense_bytes(model.parameters(), dist.get_world_size())
        if method == "compute":
            model.register_comm_hook(None, debugging_hooks.noop_hook)
            return Prepared(model, optimizer)
        if method == "bf16":
            model.register_comm_hook(None, half_hook)
            return Prepared(model, optimizer, dense / 2)
        return Prepared(model, optimizer, dense)

    def barrier(self) -> None:
        dist.barrier()

    def total(self, tensor: Tensor) -> Tensor:
        dist.all_reduce(tensor)
        return tensor

    def gather(self, value: Any) -> list[Any]:
        found = [None] * dist.get_world_size()
        dist.all_gather_object(found, value)
        return found


def dense_bytes(parameters: Iterable[nn.Parameter], ranks: int) -> float:
    """Return the bytes that a rank sends in a ring all-reduce of all gradients in float32."""
    numel = sum(each.numel() for each in parameters if each.requires_grad)
    # Everything but its own share, twice: once to reduce, once to gather.
    return 2 * (ranks - 1) / ranks * numel * torch.float32.itemsize
