"""Links, networks of ranks, and the sizes of a rank's messages."""

import dataclasses
import math
from typing import Self

from gradwire._validate import Checked, Count, NotNegative, require


@dataclasses.dataclass(frozen=True)
class Link(Checked):
    """A full-duplex link.

    A message of m bytes takes ``latency + overhead + 8 m / bandwidth``. Several messages that a
    rank sends at once share the bandwidth and the latency, but not the overhead.

    Parameters
    ----------
    bandwidth : float
        Bits per second that a rank, or a node with several ranks, sends and at the same time
        receives. May be ``math.inf``.
    latency : float
        Seconds from the start of a message to the arrival of its first byte.
    overhead : float
        Seconds in which a rank's processor prepares a message and cannot prepare another one.

    References
    ----------
    Alexandrov, Ionescu, Schauser, Scheiman, "LogGP: Incorporating Long Messages into the LogP
    Model", SPAA 1995: L, o and G = 8 / bandwidth.

    Raises
    ------
    TypeError, ValueError
        A number is of another type, or out of its range.
    """

    bandwidth: float
    latency: NotNegative = 0.0
    overhead: NotNegative = 0.0

    def __post_init__(self) -> None:
        require(self.bandwidth > 0.0, "bandwidth must be above 0, got {!r}", self.bandwidth)
        super().__post_init__()

    def seconds(self, nbytes: float, rounds: float, messages: float) -> float:
        """Return the seconds of so many bytes on the longest path, and messages of a rank.

        ``rounds`` of these have to wait for each other.
        """
        return rounds * self.latency + messages * self.overhead + 8.0 * nbytes / self.bandwidth


_AT_ONCE = Link(math.inf)


@dataclasses.dataclass(frozen=True)
class Network(Checked):
    """Ranks, and the links between them.

    Parameters
    ----------
    ranks : int
        Number of ranks, at least 1.
    link : Link
        Between nodes. All ranks of a node share it.
    node_size : int
        Ranks in a node. 1 is a flat network. Must divide the number of ranks.
    inside : Link
        Of each rank to the others of its node. By default it costs nothing.

    Raises
    ------
    TypeError, ValueError
        A number is of another type or out of its range, or the ranks do not fill nodes.
    """

    ranks: Count
    link: Link
    node_size: Count = 1
    inside: Link = _AT_ONCE

    def __post_init__(self) -> None:
        super().__post_init__()
        filled = self.ranks % self.node_size == 0
        require(filled, "{} ranks do not fill nodes of {}", self.ranks, self.node_size)

    @property
    def nodes(self) -> int:
        """Number of nodes."""
        return self.ranks // self.node_size


@dataclasses.dataclass(frozen=True)
class Payload:
    """The sizes of the data that one rank sends for the tensors of a bucket.

    Parameters
    ----------
    numel : int
        Entries of the tensors.
    entries : float
        Entries that are sent, at most ``numel``.
    value_bits : float
        Bits of an entry's value, with its share of scales.
    position_bits : float
        Bits of an entry's position; 0 where all ranks know it.
    header : float
        Bytes of a frame besides its entries. 0 for data without frames.
    frames : int
        Frames that the entries are in: one for each tensor.

    Raises
    ------
    ValueError
        There are more entries than the tensors have, or fewer than none.
    """

    numel: int
    entries: float
    value_bits: float = 32.0
    position_bits: float = 0.0
    header: float = 0.0
    frames: int = 1

    def __post_init__(self) -> None:
        possible = 0.0 <= self.entries <= self.numel
        require(possible, "{:g} entries of a tensor that has {}", self.entries, self.numel)

    @classmethod
    def dense(cls, numel: int, value_bits: float = 32.0) -> Self:
        """Return the payload of all values, without frames."""
        return cls(numel, float(numel), value_bits)

    @classmethod
    def sparse(cls, numel: int, entries: float, value_bits: float = 32.0, frames: int = 1) -> Self:
        """Return the payload of some entries, with estimated sizes of positions and headers.

        A position takes `information_bits` and 0.3 bits, half of the most that Elias–Fano coding
        adds; a header takes 48 bytes. A `gradwire.cost.Calibration` has measured sizes. Raises a
        ValueError if more entries are sent than there are.
        """
        bits = information_bits(numel, entries) + 0.3 if 0.0 < entries < numel else 0.0
        return cls(numel, entries, value_bits, bits, 48.0, frames)

    @property
    def value_bytes(self) -> float:
        """Bytes of all values."""
        return self.entries * self.value_bits / 8.0

    @property
    def position_bytes(self) -> float:
        """Bytes of all positions, with the headers of their frames."""
        return self.frames * self.header + self.entries * self.position_bits / 8.0

    @property
    def nbytes(self) -> float:
        """Bytes of all frames."""
        return self.value_bytes + self.position_bytes

    def share(self, parts: int) -> Self:
        """Return the payload of one part if every tensor is cut into ``parts`` equal parts.

        Each part of a tensor has a frame of its own, as where the ranks of a node divide a bucket.
        """
        return dataclasses.replace(
            self, numel=-(-self.numel // parts), entries=self.entries / parts
        )

    def range(self, parts: int) -> Self:
        """Return the payload of one range if the bucket is cut into ``parts`` equal ranges.

        A range holds some of the tensors, or a part of one, as where each rank owns a range.
        """
        frames = max(1, -(-self.frames // parts))
        return dataclasses.replace(self.share(parts), frames=min(frames, self.frames))


def information_bits(numel: float, entries: float) -> float:
    """Return the minimum bits per entry for positions: ``log2 C(numel, entries) / entries``.

    Of ``numel`` entries of the tensor, ``entries`` are sent: ``0 < entries <= numel``.
    """
    ways = math.lgamma(numel + 1) - math.lgamma(entries + 1) - math.lgamma(numel - entries + 1)
    return max(ways, 0.0) / math.log(2) / entries
