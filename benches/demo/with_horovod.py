"""Training with Horovod: its own optimizer for the baselines, gradwire's for codecs."""

from typing import Any

import horovod
import horovod.torch as hvd
import torch
from torch import nn

import gradwire
from benches.demo.framework import Prepared
from benches.demo.methods import AllReduce, Compressed, dense_bytes
from gradwire.codec import Codec
from gradwire.schedule import Constant
from gradwire.torch.horovod import DistributedOptimizer
from gradwire.torch.transport.horovod import HorovodTransport


class Horovod:
    """Ranks that `horovodrun` has started."""

    def __init__(self, setup: dict[str, Any]) -> None:
        torch.set_num_threads(setup["threads"])
        gradwire.set_num_threads(setup["threads"])
        hvd.init()
        self._channel = HorovodTransport(hvd.global_process_set, None).make()
        self.versions = {"horovod": str(horovod.__version__)}

    def prepare(
        self, module: nn.Module, optimizer: torch.optim.Optimizer, method: str, codec: Codec | None
    ) -> Prepared:
        """Wrap the optimizer."""
        hvd.broadcast_parameters(module.state_dict(), root_rank=0)
        named = list(module.named_parameters())
        if method == "compute":  # no exchange at all: an upper bound for the gain from compression
            return Prepared(module, optimizer, AllReduce(0.0))
        dense = dense_bytes(module.parameters(), hvd.size())
        if method == "none":
            wrapped = hvd.DistributedOptimizer(optimizer, named)
            return Prepared(module, wrapped, AllReduce(dense))
        if method == "fp16":
            wrapped = hvd.DistributedOptimizer(optimizer, named, compression=hvd.Compression.fp16)
            return Prepared(module, wrapped, AllReduce(dense / 2))
        assert codec is not None, f"{method} is not Horovod's"
        wrapped = DistributedOptimizer(optimizer, named, codec=codec, schedule=Constant())
        return Prepared(module, wrapped, Compressed(wrapped.handle))

    def barrier(self) -> None:
        """Wait for all ranks."""
        hvd.barrier()

    def total(self, tensor: torch.Tensor) -> torch.Tensor:
        """Return the sum over all ranks."""
        found: torch.Tensor = hvd.allreduce(tensor, op=hvd.Sum)
        return found

    def gather(self, value: Any) -> list[Any]:
        """Return the values of all ranks."""
        return self._channel.all_gather_object(value)

    def broadcast(self, value: Any, source: int) -> Any:
        """Return the value of one rank on every rank."""
        return self.gather(value if hvd.rank() == source else None)[source]
