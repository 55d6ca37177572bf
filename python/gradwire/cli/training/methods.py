"""The methods under comparison: what each puts between DDP's buckets and the wire.

``none`` and ``bf16`` are torch's own. Every other name is a preset of gradwire, found by its name,
so that a preset added to the package can be asked for here without a change.
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
from gradwire.memory import MomentumCorrection
from gradwire.schedule import SCHEDULES, Constant, Schedule
from gradwire.torch import ddp
from gradwire.torch.optim import parameter_groups


@dataclass(frozen=True)
class Traffic:
    """What one rank sent in a run, as payload: without the headers of packets."""

    bytes_per_step: float
    achieved: float | None = (
        None  # entries sent over entries asked for, where a method has a target
    )
    detail: dict[str, Any] | None = None  # the mean milliseconds and sizes that the method reports


class Exchange(Protocol):
    """A method, attached to a DDP model."""

    def groups(self) -> list[dict[str, Any]] | None:
        """Return the parameters by who applies momentum to them, if the method does to some."""

    def traffic(self) -> Traffic:
        """Return what was sent so far."""

    def epoch(self, epoch: int) -> None:
        """Begin an epoch, for methods that have a schedule."""

    def detach(self) -> None:
        """Let go of threads and process groups."""


@dataclass(frozen=True)
class _AllReduce:
    """torch's own exchange: every entry, every step."""

    bytes_per_step: float

    def groups(self) -> None:
        return None

    def traffic(self) -> Traffic:
        return Traffic(self.bytes_per_step)

    def epoch(self, epoch: int) -> None:
        pass

    def detach(self) -> None:
        pass


@dataclass(frozen=True)
class _Compressed:
    handle: ddp.Handle

    def groups(self) -> list[dict[str, Any]] | None:
        corrects = isinstance(self.handle.codec.memory, MomentumCorrection)
        return parameter_groups(self.handle) if corrects else None

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
    # The hook of torch, and its code. DDP tells it by its name, and refuses that on builds of torch
    # without NCCL, although Gloo reduces bfloat16 as well. Under another name it works on all.
    return default_hooks.bf16_compress_hook(group, bucket)


# DDP insists that annotations, if there are any, are its own.
_bf16.__annotations__.clear()


def attach(
    name: str,
    model: DistributedDataParallel,
    ratio: float | None = None,
    codec: dict[str, Any] | None = None,
    schedule: dict[str, Any] | None = None,
) -> Exchange:
    """Attach the method of that name to a fresh DDP model.

    A preset is made with the ratio; or a codec is made of its configuration, whatever its name. So
    is a schedule.
    """
    if name == "compute":  # no exchange at all: the most that any compression can win
        model.register_comm_hook(None, debugging_hooks.noop_hook)
        return _AllReduce(0.0)
    if name == "none":
        return _AllReduce(dense_bytes(model))
    if name == "bf16":
        model.register_comm_hook(None, _bf16)
        return _AllReduce(dense_bytes(model) / 2)
    made = build(name, ratio) if codec is None else Codec.from_config(codec)
    return _Compressed(ddp.attach(model, made, schedule=_schedule(schedule)))


def _schedule(config: dict[str, Any] | None) -> Schedule:
    if config is None:
        return Constant()
    made = part_from_config("schedule", config, SCHEDULES)
    assert isinstance(made, Schedule)
    return made


def dense_bytes(model: DistributedDataParallel) -> float:
    """Return what a rank sends in a ring all-reduce of all gradients in float32."""
    numel = sum(each.numel() for each in model.parameters() if each.requires_grad)
    ranks = dist.get_world_size()
    # All of it, less its own share, twice: once to reduce, once to gather.
    return 2 * (ranks - 1) / ranks * numel * torch.float32.itemsize
