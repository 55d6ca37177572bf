"""The part of each parameter that a rank owns, if the ranks of a node divide every gradient.

Every parameter is divided separately, by its shape alone, into blocks of rows like those of
`torch.chunk` and FSDP. So states by name stay valid however buckets are grouped, every rank of a
node has the same work in every bucket, and the shares of a node together are the gradient.
"""

import zlib
from collections.abc import Sequence
from dataclasses import dataclass

import torch


@dataclass(frozen=True, slots=True)
class Shard:
    """A part of a parameter: a block of rows, which is contiguous in memory.

    It has the entries from start to stop in the memory order of the whole gradient, and the rows
    ``first`` up to ``end``; None if the part is everything or empty.
    """

    shape: tuple[int, ...]
    strides: tuple[int, ...]
    start: int
    stop: int
    rows: tuple[int, int] | None = None

    @property
    def numel(self) -> int:
        """Number of entries."""
        return self.stop - self.start

    def of(self, values: torch.Tensor) -> torch.Tensor:
        """Return this part of values of the parameter's shape; of a DTensor, the local part."""
        here = local(values)
        if here is not values:
            return here
        if self.rows is not None:
            return values[self.rows[0] : self.rows[1]]
        if values.numel() not in (0, self.numel) and self.numel:
            raise ValueError(
                f"shape {tuple(values.shape)} cannot be resharded: only shards by rows can"
            )
        return values if self.numel else values.flatten()[:0]


def local(tensor: torch.Tensor) -> torch.Tensor:
    """Return the tensor, or the local part of a DTensor."""
    shard = getattr(tensor, "_local_tensor", tensor)
    assert isinstance(shard, torch.Tensor)
    return shard


def laid_out(tensor: torch.Tensor) -> tuple[int, ...]:
    """Return a gradient's strides in a bucket: its parameter's, or row-major if they have gaps."""
    dense = torch.empty_like(tensor, device="meta", memory_format=torch.preserve_format)
    if dense.stride() == tensor.stride():
        return tensor.stride()
    return torch.empty(tensor.shape, device="meta").stride()


def shard_of(name: str, tensor: torch.Tensor, share: int, shares: int) -> Shard:
    """Return a share of a parameter.

    Where rows are not contiguous, as in a transposed matrix or a scalar, one rank owns everything:
    which one depends on the name.
    """
    if local(tensor) is not tensor:
        tensor = torch.empty(tensor.shape, device="meta")
    strides, numel = laid_out(tensor), tensor.numel()
    row = numel // max(len(tensor), 1) if tensor.ndim else 0
    if tensor.ndim and (strides[0] == row or len(tensor) <= 1):
        block = -(-len(tensor) // shares)
        rows = min(share * block, len(tensor)), min((share + 1) * block, len(tensor))
        shape = (rows[1] - rows[0], *tensor.shape[1:])
        return Shard(shape, strides, rows[0] * row, rows[1] * row, rows)
    if zlib.crc32(name.encode()) % shares == share:
        return Shard(tuple(tensor.shape), strides, 0, numel)
    return Shard((0,), (1,), 0, 0)


class BucketShards:
    """The positions of all shares in a bucket.

    ``runs`` has the entries (start, stop) of each share in the bucket, one pair per parameter, and
    ``numels`` how many these are; ``room`` is the largest of them.
    """

    __slots__ = ("numels", "room", "runs")

    def __init__(self, parameters: Sequence[tuple[str, torch.Tensor]], shares: int) -> None:
        self.runs: list[list[tuple[int, int]]] = [[] for _ in range(shares)]
        at = 0
        for name, tensor in parameters:
            width = 2 if tensor.is_complex() else 1
            for share, runs in enumerate(self.runs):
                part = shard_of(name, tensor, share, shares)
                if part.numel:
                    runs.append((at + width * part.start, at + width * part.stop))
            at += width * tensor.numel()
        self.numels = [sum(stop - start for start, stop in runs) for runs in self.runs]
        self.room = max(self.numels, default=0)
