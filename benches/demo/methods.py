"""The methods under comparison, whatever framework exchanges the gradients.

``none``, ``bf16`` and ``fp16`` are the framework's own. Every other name is a preset of gradwire,
looked up by name, so that a new preset needs no change here.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Protocol

import torch

from gradwire.cli.codecs import build
from gradwire.codec import Codec
from gradwire.torch.ddp import Handle

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

    def detach(self) -> None:
        """Release threads and process groups."""


@dataclass(frozen=True)
class AllReduce:
    """The framework's own exchange: every entry, every step."""

    bytes_per_step: float

    def traffic(self) -> Traffic:
        """Return what was sent so far."""
        return Traffic(self.bytes_per_step)

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

    def detach(self) -> None:
        """Release what the exchange holds."""
        self.handle.detach()


def codec_of(name: str, ratio: float | None = None) -> Codec | None:
    """Return the codec of the preset `name`; None for the methods that are not gradwire's."""
    return None if name in OWN else build(name, ratio)


def dense_bytes(parameters: Iterable[torch.nn.Parameter], ranks: int) -> float:
    """Return the bytes that a rank sends in a ring all-reduce of all gradients in float32."""
    numel = sum(each.numel() for each in parameters if each.requires_grad)
    # Everything but its own share, twice: once to reduce, once to gather.
    return 2 * (ranks - 1) / ranks * numel * torch.float32.itemsize
