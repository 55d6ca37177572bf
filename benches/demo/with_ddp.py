"""Training with torch's DistributedDataParallel."""

from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks import debugging_hooks
from torch.nn.parallel import DistributedDataParallel

from benches.demo.framework import Prepared
from benches.demo.methods import AllReduce, Compressed, Exchange, dense_bytes
from benches.harness.half import half_hook
from benches.harness.rank_process import form_group
from gradwire.codec import Codec
from gradwire.schedule import Constant
from gradwire.torch import ddp
from gradwire.torch.transport import ProcessGroupChannel

# The same buckets for every method: two per model, so that DDP can overlap the first with the rest
# of the backward pass.
_BUCKET_MB = 1


class DDP:
    """Ranks of `torch.distributed` over Gloo."""

    def __init__(self, setup: dict[str, Any]) -> None:
        form_group(setup, seconds=120)
        world = dist.group.WORLD
        assert world is not None
        self._channel = ProcessGroupChannel(world)
        self.versions: dict[str, str] = {}

    def prepare(
        self, module: nn.Module, optimizer: torch.optim.Optimizer, method: str, codec: Codec | None
    ) -> Prepared:
        """Wrap the model, and register the method's hook."""
        model = DistributedDataParallel(
            module, bucket_cap_mb=_BUCKET_MB, gradient_as_bucket_view=True
        )
        exchange = _attach(model, optimizer, method, codec)
        return Prepared(model, optimizer, exchange)

    def barrier(self) -> None:
        """Wait for all ranks."""
        dist.barrier()

    def total(self, tensor: torch.Tensor) -> torch.Tensor:
        """Return the sum over all ranks."""
        dist.all_reduce(tensor)
        return tensor

    def gather(self, value: Any) -> list[Any]:
        """Return the values of all ranks."""
        return self._channel.all_gather_object(value)

    def broadcast(self, value: Any, source: int) -> Any:
        """Return the value of one rank on every rank."""
        return self.gather(value if dist.get_rank() == source else None)[source]


def _attach(
    model: DistributedDataParallel,
    optimizer: torch.optim.Optimizer,
    method: str,
    codec: Codec | None,
) -> Exchange:
    dense = dense_bytes(model.parameters(), dist.get_world_size())
    if method == "compute":  # no exchange at all: an upper bound for the gain from compression
        model.register_comm_hook(None, debugging_hooks.noop_hook)
        return AllReduce(0.0)
    if method == "none":
        return AllReduce(dense)
    if method == "bf16":
        model.register_comm_hook(None, half_hook)
        return AllReduce(dense / 2)
    assert codec is not None, f"{method} is not DDP's"
    return Compressed(ddp.attach(model, codec, optimizer=optimizer, schedule=Constant()))
