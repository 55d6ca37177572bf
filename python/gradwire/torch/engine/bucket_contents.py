"""The contents of a bucket: its parameters, and how each one is sent."""

import zlib
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from gradwire.torch.engine.metrics import Counters
from gradwire.torch.engine.parameter import BucketSlice, ParameterSlot, observe
from gradwire.torch.engine.sharding import BucketShards, shard_of
from gradwire.torch.transport import RankTopology


class BucketContents:
    """The parameters of one bucket, in the order of its buffer.

    Compressed parameters are ``pieces``, with one frame each; the others are ``dense``. A bucket
    with a single parameter may be a ``sparse`` tensor. ``rows`` and ``dense_rows`` are their row
    numbers in the counters, which are new by default. If the ranks of a node divide the bucket,
    ``cut`` has the positions of all shares, and everything else describes this rank's share.
    """

    def __init__(
        self,
        parameters: Sequence[ParameterSlot],
        dtype: torch.dtype,
        counters: Counters | None = None,
        rows: Sequence[int] | None = None,
        *,
        sparse: bool = False,
        cut: BucketShards | None = None,
    ) -> None:
        self.sparse = sparse
        self.cut = cut
        coded: list[tuple[BucketSlice, int]] = []
        dense: list[tuple[BucketSlice, int]] = []
        runs: list[tuple[int, int]] = []
        at = 0
        digest = zlib.crc32(f"{dtype}{' sparse' * sparse}".encode())
        all_rows = range(len(parameters)) if rows is None else rows
        for parameter, row in zip(parameters, all_rows, strict=True):
            piece = BucketSlice(parameter, at, at + parameter.width * parameter.numel)
            at = piece.stop
            if parameter.compressed and not sparse:
                coded.append((piece, row))
            else:
                dense.append((piece, row))
                if runs and runs[-1][1] == piece.start:
                    runs[-1] = (runs[-1][0], piece.stop)
                elif not sparse:
                    runs.append((piece.start, piece.stop))
            described = f"{parameter.name}\0{parameter.numel}\0{not parameter.compressed}\0"
            digest = zlib.crc32(described.encode(), digest)
        self.pieces = tuple(piece for piece, _ in coded)
        self.dense = tuple(piece for piece, _ in dense)
        self.runs = tuple(runs)  # entries (start, stop) of dense parameters, merged if adjacent
        self.dense_numel = sum(stop - start for start, stop in runs)
        self.numel = at
        self.dtype = dtype
        self.digest = digest  # ranks compare it before they read each other's bytes
        self.compressed = tuple(piece.parameter for piece in self.pieces)
        self.computed = any(slot.computed for slot in self.compressed)  # steps, or momentum
        # Whose averages change estimates.
        self.estimates = [piece for piece in self.pieces if piece.parameter.estimates]
        self.uncoded = tuple(piece.parameter for piece in self.dense)
        # Start and stop of each piece, alternating.
        self.ends = [end for piece in self.pieces for end in (piece.start, piece.stop)]
        self.facts: Any = None  # of its slots, where a device fills them
        self.counters = Counters(len(parameters)) if counters is None else counters
        self.rows = np.array([row for _, row in coded], np.intp)
        self.dense_rows = np.array([row for _, row in dense], np.intp)
        self.dense_numels = np.array([piece.stop - piece.start for piece in self.dense], np.int64)

    @property
    def names(self) -> list[str]:
        """The names of all parameters, in an order that all ranks share."""
        return [piece.parameter.name for piece in (*self.pieces, *self.dense)]


class BucketContentsCache:
    """Finds the contents of a bucket by its parameters: DDP may regroup its buckets.

    The counters have a row per parameter, in the given order, and one for all parameters that were
    replaced. A place is given if the ranks of a node divide every bucket.
    """

    def __init__(
        self, parameters: Sequence[ParameterSlot], place: RankTopology | None = None
    ) -> None:
        self._place = place
        # The parameters are kept alive here, which keeps their ids valid.
        self._parameters = list(parameters)
        self._replaced = len(self._parameters)
        self._by_id = {id(slot.tensor): row for row, slot in enumerate(self._parameters)}
        self.counters = Counters(len(self._parameters) + 1)
        self._known: dict[tuple[int, ...], BucketContents] = {}

    def forget(self) -> None:
        """Drop all contents: from now on, other parameters are sent dense."""
        self._known.clear()

    def of(self, tensors: Sequence[torch.Tensor], buffer: torch.Tensor) -> BucketContents:
        """Return the contents of a bucket, from its parameters and its flat buffer."""
        key = tuple(map(id, tensors))
        contents = self._known.get(key)
        if contents is None:
            contents = self._known[key] = self._make(key, tensors, buffer)
            for parameter in contents.compressed:
                observe(parameter)
        return contents

    def _make(
        self, key: tuple[int, ...], tensors: Sequence[torch.Tensor], buffer: torch.Tensor
    ) -> BucketContents:
        for tensor, id_ in zip(tensors, key, strict=True):
            if id_ not in self._by_id:
                # The model had this parameter when it was wrapped, and has since replaced it. DDP
                # still averages the old one; it is sent dense.
                name = f"(replaced, shape {tuple(tensor.shape)})"
                share = None
                if self._place is not None:
                    share = shard_of(name, tensor, self._place.share, self._place.shares)
                self._by_id[id_] = len(self._parameters)
                self._parameters.append(ParameterSlot(name, tensor, share=share))
        rows = [self._by_id[id_] for id_ in key]
        parameters = [self._parameters[row] for row in rows]
        # Replaced parameters are counted together.
        rows = [min(row, self._replaced) for row in rows]
        sparse = buffer.layout != torch.strided
        shares, dtype = None, buffer.dtype
        if self._place is not None:
            named = [(slot.name, slot.tensor) for slot in parameters]
            shares = BucketShards(named, self._place.shares)
            dtype = torch.promote_types(dtype, torch.float32)  # of sums inside the node
        contents = BucketContents(parameters, dtype, self.counters, rows, sparse=sparse, cut=shares)
        numel = contents.numel if shares is None else sum(shares.numels)
        if numel != buffer.numel():
            entries = buffer.numel()
            raise RuntimeError(f"a bucket has {entries} entries, its parameters have {numel}")
        return contents
