"""The methods under comparison, whatever framework exchanges the gradients.

``none``, ``bf16`` and ``fp16`` are the framework's own. Every other name is a preset of gradwire,
looked up by name, so that a new preset needs no change here.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Protocol

import torch

from gradwire._part import part_from_config
from gradwire.cli.codecs import build
from gradwire.codec import Codec
from gradwire.schedule import Constant, Schedule
from gradwire.torch.engine.handle import Handle

OWN = ("compute", "none", "bf16", "fp16")
"""Methods without a codec."""


@dataclass(frozen=True)
class Traffic:
    """Payload that one rank sent in a run, without packet headers."""

    bytes_per_step: float
    achieved: float | None = None  # entries sent over entries asked for, if the method has a target
    detail: dict[str, Any] | None = None  # mean milliseconds and sizes reported by the method


class Exchange(Protocol):
    """A method that exchanges the gradients of a model."""

    def traffic(self) -> Traffic:
        """Return what was sent so far."""

    def epoch(self, epoch: int) -> None:
        """Begin an epoch, for methods that have a schedule."""

    def detach(self) -> None:
        """Release threads and process groups."""


@dataclass(frozen=True)
class AllReduce:
    """The framework's own exchange: every entry, every step."""

    bytes_per_step: float

    def traffic(self) -> Traffic:
        """Return what was sent so far."""
        return Traffic(self.bytes_per_step)

    def epoch(self, epoch: int) -> None:
        """Do nothing: there is no schedule."""

    def detach(self) -> None:
        """Do nothing: there is nothing to release."""


@dataclass(frozen=True)
class Compressed:
    """gradwire's exchange."""

    handle: Handle

    def traffic(self) -> Traffic:
        """Return what was sent so far."""
        report = self.handle.report()
        names = ("encode_ms", "exchange_ms", "decode_ms", "wait_ms", "slot_use", "residual_norm")
        detail = {name: getattr(report, name) for name in names}
        return Traffic(report.wire_bytes, report.achieved, {"codec": report.codec, **detail})

    def epoch(self, epoch: int) -> None:
        """Begin an epoch."""
        self.handle.epoch(epoch)

    def detach(self) -> None:
        """Release what the exchange holds."""
        self.handle.detach()


def codec_of(
    name: str, ratio: float | None = None, config: dict[str, Any] | None = None
) -> Codec | None:
    """Return a method's codec: of the configuration, if given, else of the preset `name`.

    None for the methods that are not gradwire's.
    """
    if name in OWN:
        return None
    return build(name, ratio) if config is None else Codec.from_config(config)


def schedule_of(config: dict[str, Any] | None) -> Schedule:
    """Return the schedule of a configuration; none, if that is None."""
    if config is None:
        return Constant()
    made = part_from_config("schedule", config, Schedule.KINDS)
    assert isinstance(made, Schedule)
    return made


def dense_bytes(parameters: Iterable[torch.nn.Parameter], ranks: int) -> float:
    """Return the bytes that a rank sends in a ring all-reduce of all gradients in float32."""
    numel = sum(each.numel() for each in parameters if each.requires_grad)
    # Everything but its own share, twice: once to reduce, once to gather.
    return 2 * (ranks - 1) / ranks * numel * torch.float32.itemsize
