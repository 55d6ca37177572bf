"""Average gradients of simulated ranks as `gradwire.torch.ddp` does, with its codecs and limits."""

from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from gradwire import Codec, State, _native
from gradwire.torch.engine.metrics import Outcomes
from gradwire.torch.engine.parameter import SizeLimit

from .flat import Flat

RECORD = 24
"""Bytes beside each frame in a slot of the all-gather."""


class Averaging(Protocol):
    """Averages the gradients of all ranks.

    Attributes
    ----------
    nbytes : float
        Bytes that a rank sends in the last step.
    """

    nbytes: float

    def take(self, rank: int, gradients: Tensor) -> None:
        """Take the gradients of a rank; ranks come in order."""

    def average(self, out: Tensor) -> None:
        """Write the average, and forget the gradients."""


class Encoding(Averaging, Protocol):
    """Averages with a codec.

    Attributes
    ----------
    states : list of list of gradwire.State
        For each rank, the states of the compressed parameters.
    """

    states: list[list[State]]

    def change(self, codec: Codec) -> None:
        """Encode with another codec from now on, which keeps the same states."""


class Dense:
    """Every entry in float32, as plain DDP sends it."""

    def __init__(self, flat: Flat, ranks: int, start: int = 0) -> None:
        self._ranks = ranks
        self._sum = torch.zeros_like(flat.gradients[start:])
        # A ring all-reduce: everything but the own share, twice.
        self.nbytes = 2 * (ranks - 1) / ranks * 4 * flat.numel

    def take(self, rank: int, gradients: Tensor) -> None:
        """Add the gradients of a rank; ranks come in order."""
        self._sum.add_(gradients)

    def average(self, out: Tensor) -> None:
        """Write the average, and forget the gradients."""
        torch.div(self._sum, self._ranks, out=out)
        self._sum.zero_()


class Compressed:
    """Large parameters as frames of a codec, the others dense: an all-gather.

    Attributes
    ----------
    states : list of list of gradwire.State
        For each rank, the states of the compressed parameters.
    encoded : Outcomes
        What the last encode of a rank gave, with a row for each parameter.
    nbytes : float
        Bytes that a rank sends in the last step.
    """

    encoded: Outcomes

    def __init__(self, flat: Flat, ranks: int, codec: Codec) -> None:
        if codec.exchange.get_config()["kind"] != "all_gather":
            raise ValueError(f"only for all-gathers, and {codec!r} has another exchange")
        self._flat, self._ranks = flat, ranks
        self.change(codec)
        self.states: list[list[State]] = [
            [
                each.init_state(piece.stop - piece.start, name=piece.name, stream=rank)
                for each, piece in zip(self._codecs, flat.pieces, strict=True)
            ]
            for rank in range(ranks)
        ]
        self._given = [None] * len(flat.pieces)
        self._ends = [end for piece in flat.pieces for end in (piece.start, piece.stop)]
        self._outcomes: list[Outcomes] = []
        self._others = Dense(flat, ranks, flat.cut)
        self.nbytes = 0.0

    def change(self, codec: Codec) -> None:
        """Encode with another codec from now on, which keeps the same states."""
        self._codecs = [codec.for_shape(piece.shape) for piece in self._flat.pieces]
        self._native = [each._codec for each in self._codecs]
        bounds = [
            each.max_encoded_len(piece.stop - piece.start)
            for each, piece in zip(self._codecs, self._flat.pieces, strict=True)
        ]
        fixed = not (codec.memory.keeps and codec.sparsify.selects)
        self._limits = [SizeLimit(bound, fixed=fixed) for bound in bounds]
        self._out = np.empty((self._ranks, sum(bounds)), np.uint8)

    def take(self, rank: int, gradients: Tensor) -> None:
        """Encode the gradients of a rank; ranks come in order."""
        limits = [each.nbytes for each in self._limits]
        table, error = _native.encode_bucket(
            gradients.numpy(),
            1.0,
            self._native,
            self.states[rank],
            self._ends,
            limits,
            self._given,
            self._out[rank],
        )
        if error is not None:
            raise error
        self.encoded = Outcomes.of(table)
        self._outcomes.append(self.encoded)
        self._others.take(rank, gradients[self._flat.cut :])
        own = sum(limits) + RECORD * len(limits) + 4 * self._flat.numel_dense
        self.nbytes = (self._ranks - 1) * own

    def average(self, out: Tensor) -> None:
        """Decode all frames in the order of ranks into the average."""
        self._others.average(out[self._flat.cut :])
        unused = np.all([each.zero for each in self._outcomes], axis=0)
        for piece in np.flatnonzero(unused):
            for states in self.states:
                states[piece].rollback()
        wanted = np.max([each.wanted() for each in self._outcomes], axis=0)
        for limit, size in zip(self._limits, wanted.tolist(), strict=True):
            limit.observe(size)
        _native.average_bucket(
            self._out.reshape(-1),
            [rank * self._out.shape[1] for rank in range(self._ranks)],
            [each.nbytes.tolist() for each in self._outcomes],
            self._ends,
            unused.tolist(),
            out.numpy(),
            1.0,
            False,
        )
        self._outcomes.clear()
