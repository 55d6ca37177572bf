"""Training with Horovod: its own optimizer for the baselines, gradwire's for codecs."""

from typing import Any

import horovod
import horovod.torch as hvd
import torch
from torch import Tensor, nn

import gradwire
from benches.demo.frameworks import Framework, Prepared, dense_bytes
from gradwire._codec import Codec
from gradwire.schedule import Constant
from gradwire.torch.horovod import DistributedOptimizer


class Horovod(Framework):
    """Ranks that `horovodrun` has started."""

    def __init__(self, setup: dict[str, Any]) -> None:
        torch.set_num_threads(setup["threads"])
        gradwire.set_num_threads(setup["threads"])
        hvd.init()
        self.rank, self.versions = hvd.rank(), {"horovod": str(horovod.__version__)}

    def prepare(
        self, module: nn.Module, optimizer: Any, method: str, codec: Codec | None
    ) -> Prepared:
        hvd.broadcast_parameters(module.state_dict(), root_rank=0)
        named = list(module.named_parameters())
        if codec is not None:
            wrapped = DistributedOptimizer(optimizer, named, codec=codec, schedule=Constant())
            return Prepared(module, wrapped, handle=wrapped.handle)
        dense = dense_bytes(module.parameters(), hvd.size())
        if method == "compute":
            return Prepared(module, optimizer)
        if method == "fp16":
            wrapped = hvd.DistributedOptimizer(optimizer, named, compression=hvd.Compression.fp16)
            return Prepared(module, wrapped, dense / 2)
        return Prepared(module, hvd.DistributedOptimizer(optimizer, named), dense)

    def barrier(self) -> None:
        hvd.barrier()

    def total(self, tensor: Tensor) -> Tensor:
        found: Tensor = hvd.allreduce(tensor, op=hvd.Sum)
        return found

    def gather(self, value: Any) -> list[Any]:
        # By default Horovod names it after the type of the value, which differs between ranks.
        return list(hvd.allgather_object(value, name="demo"))
