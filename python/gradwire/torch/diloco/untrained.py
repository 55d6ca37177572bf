"""Buffers and frozen parameters: what a model has besides the parameters that are exchanged."""

import hashlib
import zlib
from collections.abc import Iterable, Iterator, Mapping
from types import MappingProxyType
from typing import Any, TypeAlias

import torch
from torch.utils._python_dispatch import is_traceable_wrapper_subclass

from gradwire._validate import refuse_type, require
from gradwire.torch.engine.parameter import plain_names
from gradwire.torch.tensors import bytes_of
from gradwire.torch.transport import Channel

_PIECE = 1 << 22  # bytes of one operation: each has the channel's limit of time, on slow links too
_SAMPLE = 1 << 16  # entries of a large tensor that are compared with earlier ones
_FROZEN = "frozen "

Changes: TypeAlias = tuple[dict[str, torch.Tensor], frozenset[str]]
"""The tensors of a rank by name, and the names of those that it has changed."""


class UntrainedTensors:
    """The tensors of a model that are not exchanged as pseudo-gradients.

    Each rank uses its own, such as the statistics of BatchNorm, the target network of BYOL, or a
    frozen embedding. All ranks begin with those of one rank. Those that a rank changes are averaged
    once per round, for the model that is evaluated and exported: `shared`, the same bits on all
    ranks. Integers, such as counts of batches, are those of rank 0.
    """

    def __init__(self, model: torch.nn.Module, trained: Iterable[torch.Tensor]) -> None:
        self._model = model
        self._trained = {id(tensor) for tensor in trained}
        self._kinds = {name: _kind(tensor) for name, tensor in self.own().items()}
        self._begun: dict[str, int] = {}
        self._changed: set[str] = set()
        self.shared: dict[str, torch.Tensor] = {}

    @property
    def settings(self) -> list[tuple[str, str]]:
        """The name, dtype and shape of each tensor, equal on all ranks."""
        return list(self._kinds.items())

    def own(self) -> dict[str, torch.Tensor]:
        """Return this rank's present tensors by name; a module may have replaced a buffer."""
        frozen = (
            (f"{_FROZEN}{name}", tensor)
            for name, tensor in self._model.named_parameters()
            if id(tensor) not in self._trained
        )
        named = [*frozen, *self._model.named_buffers()]
        return plain_names(
            {
                key: part
                for name, tensor in named
                for key, part in _parts(name, tensor)
                if part.numel()
            }
        )

    def _usable(self) -> dict[str, torch.Tensor]:
        """Return those whose dtype and shape are still the same as on all ranks."""
        tensors = self.own().items()
        return {name: tensor for name, tensor in tensors if self._kinds.get(name) == _kind(tensor)}

    def begin(self, averaged: Mapping[str, torch.Tensor] = MappingProxyType({})) -> None:
        """Take the present values for those of all ranks, but for averages of a checkpoint."""
        tensors = self._usable()
        self._begun = {name: _checksum(tensor) for name, tensor in tensors.items()}
        self._changed = set(averaged)
        # A frozen parameter is rarely changed, and may be large.
        buffers = {name: tensor for name, tensor in tensors.items() if not name.startswith(_FROZEN)}
        self.shared = {**{name: tensor.clone() for name, tensor in buffers.items()}, **averaged}

    # With all ranks ---------------------------------------------------------------------------

    def align(self, channel: Channel, source: int, *, frozen: bool, buffers: bool) -> None:
        """Take over tensors of one rank, on the ranks that ask for them. A collective.

        Only those that differ are sent: the same pretrained weights on all ranks are not.
        """
        tensors, mine = self._usable(), dict.fromkeys(self._kinds, "")
        for name, tensor in tensors.items():
            if channel.rank == source or (frozen if name.startswith(_FROZEN) else buffers):
                mine[name] = hashlib.blake2b(
                    bytes_of(tensor).numpy().data, digest_size=16
                ).hexdigest()
        every = channel.all_gather_object(list(mine.values()))
        for name, *digests in zip(self._kinds, *every, strict=True):
            if not digests[source] or all(digest in ("", digests[source]) for digest in digests):
                continue
            takes = channel.rank == source or mine[name]
            broadcast(channel, [tensors[name] if takes else _empty(self._kinds[name])], source)

    def align_shared(
        self, channel: Channel, source: int, held: dict[str, torch.Tensor], *, new: bool
    ) -> None:
        """Take over averages that one rank holds, on the ranks that are new. A collective."""
        for name in channel.all_gather_object(sorted(held))[source]:
            taken = held[name] if channel.rank == source else _empty(self._kinds[name])
            broadcast(channel, [taken], source)
            if new:
                held[name] = taken

    def changed(self) -> Changes:
        """Return this rank's tensors: copies of those that it has changed since it began."""
        current = self._usable()
        self._changed |= {
            name for name, tensor in current.items() if self._begun.get(name) != _checksum(tensor)
        }
        tensors = {
            name: tensor.clone() if name in self._changed else tensor
            for name, tensor in current.items()
        }
        return tensors, frozenset(self._changed)

    @torch.no_grad()
    def average(self, channel: Channel, changes: Changes) -> dict[str, torch.Tensor]:
        """Return the averages of what any rank has changed, on the host. A collective."""
        tensors, changed = changes
        # "0": unchanged, "1": changed, "-": of another dtype or shape than on other ranks.
        mine = ("-" if name not in tensors else str(int(name in changed)) for name in self._kinds)
        every = channel.all_gather_object("".join(mine))
        averages = {}
        for name, *states in zip(self._kinds, *every, strict=True):
            if "1" not in states or "-" in states:
                continue
            averages[name] = value = tensors[name].to("cpu", copy=True).contiguous()
            if not value.is_floating_point() and not value.is_complex():
                broadcast(channel, [value], 0)
                continue
            real = torch.view_as_real(value) if value.is_complex() else value
            wide = torch.float64 if real.dtype == torch.float64 else torch.float32
            total = real.to(wide).reshape(-1)
            for piece in torch.split(total, _PIECE // total.element_size()):
                channel.all_reduce(piece).wait()
            real.copy_(total.div_(channel.size).view(real.shape))
        return averages

    # The shared model -------------------------------------------------------------------------

    @torch.no_grad()
    def exchange(self, values: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        """Write values into the model, and return the ones that they replace."""
        tensors = self._usable()
        before = {name: tensors[name].clone() for name in values if name in tensors}
        for name in before:
            tensors[name].copy_(values[name])
        return before

    def read(self, saved: Any) -> dict[str, torch.Tensor]:
        """Return averages of a checkpoint; raise an error unless they are of this model."""
        if not isinstance(saved, Mapping):
            refuse_type("untrained tensors", "a dict", saved)
        for name, value in saved.items():
            here = self._kinds.get(name, "no buffer or frozen parameter")
            there = _kind(value)
            fits = isinstance(value, torch.Tensor) and here == there
            message = "{!r} is {} in this model, but {} in the checkpoint"
            require(fits, message, name, here, there)
        return dict(saved)


@torch.no_grad()
def broadcast(channel: Channel, tensors: Iterable[torch.Tensor], source: int) -> None:
    """Broadcast tensors, of any dtype and device, from one rank, bit for bit. A collective.

    They have the same shapes on all ranks. The channel must not be in use.
    """
    for tensor in tensors:
        values = tensor.detach().cpu().contiguous().reshape(-1)
        for piece in torch.split(values.view(torch.uint8), _PIECE):
            channel.broadcast(piece, source).wait()
        if channel.rank != source and values.data_ptr() != tensor.data_ptr():
            tensor.copy_(values.view(tensor.shape))


def _parts(name: str, tensor: torch.Tensor) -> Iterator[tuple[str, torch.Tensor]]:
    """Yield a tensor by its name; of a quantized one, the tensors that it consists of."""
    whole: Any = tensor
    if is_traceable_wrapper_subclass(whole):
        for part in whole.__tensor_flatten__()[0]:
            yield from _parts(f"{name}.{part}", getattr(whole, part))
    elif tensor.layout == torch.strided and not tensor.is_meta:
        # Of an expanded tensor, which cannot be written to, what it repeats.
        for at, stride in enumerate(tensor.stride()):
            tensor = tensor if stride else tensor.narrow(at, 0, min(tensor.shape[at], 1))
        yield name, tensor.detach()


def _kind(tensor: Any) -> str:
    """Return dtype and shape, as "float32 (3, 4)"."""
    dtype = str(getattr(tensor, "dtype", type(tensor).__name__)).removeprefix("torch.")
    return f"{dtype} {tuple(getattr(tensor, 'shape', ()))}"


def _empty(kind: str) -> torch.Tensor:
    dtype, _, shape = kind.partition(" ")
    lengths = [int(length) for length in shape.strip("(),").split(",") if length.strip()]
    return torch.empty(lengths, dtype=getattr(torch, dtype))


def _checksum(tensor: torch.Tensor) -> int:
    """Return a checksum; of a large tensor, one of entries at equal distances."""
    step = max(tensor.numel() // _SAMPLE, 1)
    return zlib.crc32(bytes_of(tensor.reshape(-1)[::step]).numpy().data)
