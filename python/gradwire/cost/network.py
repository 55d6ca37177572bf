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
    processor : float
        Processor seconds of a rank per byte that it sends and receives, a part of the time on the
        link. They count where the backward pass runs on the same cores.

    References
    ----------
    Alexandrov, Ionescu, Schauser, Scheiman, "LogGP: Incorporating Long Messages into the LogP
    Model", SPAA 1995: L, o and G = 8 / bandwidth.
    """

    bandwidth: float
    latency: float = 0.0
    overhead: float = 0.0
    processor: float = 0.0

    def __post_init__(self) -> None:
        bandwidth = _validate.real("bandwidth", self.bandwidth)
        if not bandwidth > 0.0:
            raise ValueError(f"bandwidth must be above 0 bits per second, got {self.bandwidth!r}")
        object.__setattr__(self, "bandwidth", bandwidth)
        for name in ("latency", "overhead", "processor"):
            value = _validate.positive(name, getattr(self, name))
            object.__setattr__(self, name, value)

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
        wire = 0.0 if math.isinf(self.bandwidth) else 8.0 * nbytes / self.bandwidth
        return rounds * self.latency + messages * self.overhead + wire

    def processor_seconds(self, nbytes: float, messages: float) -> float:
        """Return the processor time that messages take from a rank.

        Parameters
        ----------
        nbytes : float
            Bytes that the rank sends.
        messages : float
            Number of messages that it sends.

        Returns
        -------
        float
            Seconds.
        """
        return messages * self.overhead + nbytes * self.processor


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
        for name in ("link", "inside"):
            if not isinstance(value := getattr(self, name), Link):
                raise TypeError(f"{name} must be a gradwire.cost.Link, got {value!r}")
        if self.ranks % self.node_size:
            raise ValueError(
                f"{self.ranks} ranks do not fill nodes of {self.node_size}: all nodes must have "
                "the same number of ranks"
            )

    @property
    def nodes(self) -> int:
        """Number of nodes."""
        return self.ranks // self.node_size
