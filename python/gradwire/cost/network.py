"""Links, and networks of ranks."""

import dataclasses
import math

from gradwire import _validate


@dataclasses.dataclass(frozen=True)
class Link:
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
    """

    bandwidth: float
    latency: float = 0.0
    overhead: float = 0.0

    def __post_init__(self) -> None:
        if not self.bandwidth > 0.0:
            raise ValueError(f"bandwidth must be above 0 bits per second, got {self.bandwidth!r}")
        for name in ("latency", "overhead"):
            _validate.positive(name, getattr(self, name))

    def seconds(self, nbytes: float, rounds: float, messages: float) -> float:
        """Return the time of a message, or of several ones after another.

        Parameters
        ----------
        nbytes : float
            Bytes on the longest path.
        rounds : float
            Messages on that path that have to wait for each other.
        messages : float
            Number of messages that a rank sends.

        Returns
        -------
        float
            Seconds.
        """
        return rounds * self.latency + messages * self.overhead + 8.0 * nbytes / self.bandwidth


_AT_ONCE = Link(math.inf)


@dataclasses.dataclass(frozen=True)
class Network:
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
    """

    ranks: int
    link: Link
    node_size: int = 1
    inside: Link = _AT_ONCE

    def __post_init__(self) -> None:
        _validate.integer("ranks", self.ranks, low=1)
        _validate.integer("node_size", self.node_size, low=1)
        if self.ranks % self.node_size:
            raise ValueError(
                f"{self.ranks} ranks do not fill nodes of {self.node_size}: all nodes must have "
                "the same number of ranks"
            )

    @property
    def nodes(self) -> int:
        """Number of nodes."""
        return self.ranks // self.node_size
