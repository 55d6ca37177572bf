"""The methods under comparison: how each exchanges DDP's buckets.

``none`` and ``bf16`` are torch's own. Every other name is a preset of gradwire, looked up by name,
so that a new preset needs no change here.
"""

from dataclasses import dataclass
from typing import Any, Protocol

import torch
import torch.distributed as dist
from torch.distributed.algorithms.ddp_comm_hooks import debugging_hooks, default_hooks
from torch.nn.parallel import DistributedDataParallel

from gradwire._part import part_from_config
from gradwire.cli.training.presets import build
from gradwire.codec import Codec
from gradwire.schedule import Constant, Schedule
from gradwire.torch import ddp

TORCH = ("compute", "none", "bf16")
"""Methods without a codec."""


@dataclass(frozen=True)
class Traffic:
    """Payload that one rank sent in a run, without packet headers."""

    bytes_per_step: float
    achieved: float | None = None  # entries sent over entries asked for, if the method has a target
    detail: dict[str, Any] | None = None  # mean milliseconds and sizes reported by the method


class Exchange(Protocol):
    """A method, attached to a DDP model."""

    def traffic(self) -> Traffic:
        """Return what was sent so far."""

    def epoch(self, epoch: int) -> None:
        """Begin an epoch, for methods that have a schedule."""

    def detach(self) -> None:
        """Release threads and process groups."""


@dataclass(frozen=True)
class _AllReduce:
    """torch's own exchange: every entry, every step."""

    bytes_per_step: float

    def traffic(self) -> Traffic:
        return Traffic(self.bytes_per_step)

    def epoch(self, epoch: int) -> None:
        pass

    def detach(self) -> None:
        pass


@dataclass(frozen=True)
class _Compressed:
    handle: ddp.Handle

    def traffic(self) -> Traffic:
        report = self.handle.report()
        names = ("encode_ms", "exchange_ms", "decode_ms", "wait_ms", "slot_use", "residual_norm")
        detail = {name: getattr(report, name) for name in names}
        return Traffic(report.wire_bytes, report.achieved, {"codec": report.codec, **detail})

    def epoch(self, epoch: int) -> None:
        self.handle.epoch(epoch)

    def detach(self) -> None:
        self.handle.detach()


def _bf16(group: Any, bucket: Any) -> Any:
    # This is torch's hook. DDP recognizes it by name and refuses it on builds of torch without
    # NCCL, although Gloo reduces bfloat16 too. Under another name it works everywhere.
    return default_hooks.bf16_compress_hook(group, bucket)


# DDP checks annotations, if there are any, against its own types.
_bf16.__annotations__.clear()


def codec_of(
    name: str, ratio: float | None = None, config: dict[str, Any] | None = None
) -> Codec | None:
    """Return a method's codec: of the configuration, if given, else of the preset `name`.

    None for the methods that are not gradwire's.
    """
    if name in TORCH:
        return None
    return build(name, ratio) if config is None else Codec.from_config(config)


def attach(
    name: str,
    model: DistributedDataParallel,
    codec: Codec | None,
    optimizer: torch.optim.Optimizer,
    schedule: dict[str, Any] | None = None,
) -> Exchange:
    """Attach a method to a new DDP model. The schedule is built from its configuration."""
    if name == "compute":  # no exchange at all: an upper bound for the gain from compression
        model.register_comm_hook(None, debugging_hooks.noop_hook)
        return _AllReduce(0.0)
    if name == "none":
        return _AllReduce(dense_bytes(model))
    if name == "bf16":
        model.register_comm_hook(None, _bf16)
        return _AllReduce(dense_bytes(model) / 2)
    assert codec is not None
    return _Compressed(ddp.attach(model, codec, optimizer=optimizer, schedule=_schedule(schedule)))


def _schedule(config: dict[str, Any] | None) -> Schedule:
    if config is None:
        return Constant()
    made = part_from_config("schedule", config, Schedule.KINDS)
    assert isinstance(made, Schedule)
    return made


def dense_bytes(model: DistributedDataParallel) -> float:
    """Return the bytes that a rank sends in a ring all-reduce of all gradients in float32."""
    numel = sum(each.numel() for each in model.parameters() if each.requires_grad)
    ranks = dist.get_world_size()
    # Everything but its own share, twice: once to reduce, once to gather.
    return 2 * (ranks - 1) / ranks * numel * torch.float32.itemsize
