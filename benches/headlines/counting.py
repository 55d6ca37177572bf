"""Count what AdaComp sends of each kind of layer, as its paper counts and as frames are."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass

from torch import Tensor

from benches.accuracy.flat import Flat, Piece
from benches.accuracy.methods import Method
from benches.accuracy.rules import ByOptimizer, Rule
from gradwire.sparsify import BinMax
from gradwire.torch.engine.metrics import Outcomes

SHORT_BIN, SHORT_BITS, LONG_BITS = 64, 8, 16
"""Bits of an entry in the paper: one byte for a place in at most 64 and the sign, else two."""


@dataclass
class Sent:
    """What was sent of the layers of one kind, all ranks and steps together.

    Attributes
    ----------
    numel : int
        Entries of the tensors.
    count : int
        Entries sent.
    paper_bits : int
        Bits that the paper counts for them: a place in a bin and a sign, no headers.
    frame_bytes : int
        Bytes of gradwire's frames, headers and checksums included.
    """

    numel: int = 0
    count: int = 0
    paper_bits: int = 0
    frame_bytes: int = 0

    def add(self, numel: int, count: int, nbytes: int, bits: int) -> None:
        """Count one frame."""
        self.numel += numel
        self.count += count
        self.paper_bits += bits * count
        self.frame_bytes += nbytes


def rate(sent: Mapping[str, int]) -> tuple[float, float]:
    """Return by how much float32 is compressed: as the paper counts, and by frames.

    Parameters
    ----------
    sent : dict
        The fields of `Sent`.
    """
    dense = 32 * sent["numel"]
    return dense / max(1, sent["paper_bits"]), dense / max(1, 8 * sent["frame_bytes"])


def kind(piece: Piece) -> str:
    """Return which of the paper's kinds of layer a parameter belongs to."""
    if len(piece.shape) >= 3:
        return "convolution"
    return "recurrent" if "recurrent" in piece.name else "fully connected"


def bits(places: int) -> int:
    """Return the bits of an entry in the paper, for bins of so many places."""
    return SHORT_BITS if places <= SHORT_BIN else LONG_BITS


class Counting:
    """A method of AdaComp, and what its last run has sent.

    Attributes
    ----------
    codec : Codec
        Of the method.
    sent : dict
        By the kind of layer.
    """

    def __init__(self, method: Method) -> None:
        self._method, self.codec = method, method.codec
        self.sent: dict[str, Sent] = {}

    def rule(self, flat: Flat, ranks: int, steps: int) -> Rule:
        """Return the rule for a run of so many steps."""
        self.sent = {}
        return _Counted(self._method.rule(flat, ranks, steps), self, flat)

    def count(self, pieces: Sequence[tuple[Piece, int]], outcomes: Outcomes) -> None:
        """Count the frames of one rank, for parameters and the bits of their entries."""
        rows = zip(outcomes.count.tolist(), outcomes.nbytes.tolist(), strict=True)
        for (piece, each), (count, nbytes) in zip(pieces, rows, strict=True):
            sent = self.sent.setdefault(kind(piece), Sent())
            sent.add(piece.stop - piece.start, count, nbytes, each)

    def record(self) -> dict[str, dict[str, int]]:
        """Return what the last run has sent, as plain data."""
        return {name: asdict(each) for name, each in self.sent.items()}

    def bits(self, piece: Piece) -> int:
        """Return the bits of an entry of a parameter in the paper."""
        assert self.codec is not None
        sparsify = self.codec.for_shape(piece.shape).sparsify
        if not isinstance(sparsify, BinMax) or sparsify.bin is None:
            raise ValueError(f"only AdaComp's bins are counted, and {sparsify!r} has none")
        return bits(sparsify.bin)


class _Counted:
    """Another rule, with a look at every encode."""

    def __init__(self, rule: Rule, counting: Counting, flat: Flat) -> None:
        self._rule, self._counting = rule, counting
        self._pieces = [(piece, counting.bits(piece)) for piece in flat.pieces]
        self.nbytes = 0.0

    def begin(self, learning_rate: float) -> None:
        self._rule.begin(learning_rate)

    def take(self, rank: int, gradients: Tensor) -> None:
        self._rule.take(rank, gradients)
        assert isinstance(self._rule, ByOptimizer)
        self._counting.count(self._pieces, self._rule.encoded)

    def end(self) -> None:
        self._rule.end()
        self.nbytes = self._rule.nbytes
