"""Models of exchanges: their phases, by the number of participants, and what they cost.

Bytes are exact means over the participants. Times follow the longest path. With N participants:

* Ring all-reduce: 2 (N - 1) rounds of 1/N of the bytes each; Patarasuk and Yuan, "Bandwidth optimal
  all-reduce algorithms for clusters of workstations", J. Parallel Distrib. Comput. 69 (2009),
  section 4. Gloo's default algorithm is this one.
* Ring all-gather: N - 1 rounds; Thakur, Rabenseifner, Gropp, "Optimization of Collective
  Communication Operations in MPICH", Int. J. High Perform. Comput. Appl. 19 (2005), section 4.1.
  Also Gloo's.
* Binomial-tree broadcast: ceil(log2 N) rounds; Thakur et al., section 4.2. Also Gloo's.
* A personalized message to everyone, all sent at once: one latency, N - 1 messages; Thakur et al.,
  section 4.3, for long messages.
"""

import abc
import dataclasses
import math
from typing import ClassVar

from gradwire._part import check_part
from gradwire._validate import require
from gradwire.cost.network import Network, Payload
from gradwire.exchange import Exchange

_SUMS = 1.2  # sums that an owner sends, for an entry that one rank has sent there

FRONT, RESULT = 56, 56
"""Bytes of a reduce-scatter's headers: of pieces, which also have a bit per tensor, and of sums."""


@dataclasses.dataclass(frozen=True)
class Phase:
    """One collective."""

    sent: float  #: Mean of the bytes that a participant sends.
    serial: float  #: Bytes on the longest path.
    rounds: float  #: Messages on the longest path that wait for one another.
    messages: float  #: Messages that the busiest participant sends.


def ring_all_reduce(nbytes: float, ranks: int) -> Phase:
    rounds = 2 * (ranks - 1)
    return Phase(rounds * nbytes / ranks, rounds * nbytes / ranks, rounds, rounds)


def ring_all_gather(nbytes: float, ranks: int) -> Phase:
    """Return the phase of a ring all-gather of ``nbytes`` from each participant."""
    rounds = ranks - 1
    return Phase(rounds * nbytes, rounds * nbytes, rounds, rounds)


def exchange_all(nbytes: float, ranks: int) -> Phase:
    """Return the phase in which all send all others a message of ``nbytes`` at the same time."""
    messages = ranks - 1
    return Phase(messages * nbytes, messages * nbytes, min(1, messages), messages)


@dataclasses.dataclass(frozen=True)
class ExchangeModel(abc.ABC):
    """The model of an exchange: its messages and their order."""

    #: Each rank of a node exchanges its share of a tensor with other nodes. Otherwise all ranks of
    #: all nodes form one ring.
    divides: ClassVar[bool] = True
    slots: ClassVar[bool] = False  #: Frames are sent in slots, which are longer.
    sums: ClassVar[bool] = False  #: Values are summed on the wire, in the quantizer's dtype.
    before: ClassVar[int] = 0  #: Number of first phases for which the encoding thread waits.

    @abc.abstractmethod
    def phases(self, payload: Payload, ranks: int) -> tuple[Phase, ...]:
        """Return the collectives of one bucket, where each of 1 or more ranks has this payload."""

    @abc.abstractmethod
    def buffers(self, payload: Payload, ranks: int) -> float:
        """Return the bytes of a rank's buffers for the exchange of one bucket."""

    def decodes(self, ranks: int) -> float:
        """Return how many times the entries of one participant a rank decodes."""
        return 1.0 if self.sums else float(ranks)

    def pieces(self, ranks: int) -> float:
        """Return how many frames of a tensor, or pieces of frames, a rank decodes."""
        return max(self.decodes(ranks), 1.0)

    def encodes(self, ranks: int) -> float:
        """Return how many entries a rank encodes, in units of the tensor."""
        return 1.0


@dataclasses.dataclass(frozen=True)
class RingAllReduce(ExchangeModel):
    """A dense all-reduce of values that can be added, such as float32 and bfloat16."""

    sums: ClassVar[bool] = True

    def phases(self, payload: Payload, ranks: int) -> tuple[Phase, ...]:
        return (ring_all_reduce(payload.value_bytes, ranks),)

    def buffers(self, payload: Payload, ranks: int) -> float:
        """Return the bytes of a copy, which only values of another dtype than the bucket need."""
        same = payload.entries == payload.numel and payload.value_bits == 32.0
        return 0.0 if same else payload.value_bytes


@dataclasses.dataclass(frozen=True)
class PlainRing(RingAllReduce):
    """The all-reduce of plain DDP: one ring of all ranks, whatever nodes they are in."""

    divides: ClassVar[bool] = False


@dataclasses.dataclass(frozen=True)
class GatheredFrames(ExchangeModel):
    """An all-gather of frames: `gradwire.exchange.AllGather`."""

    slots: ClassVar[bool] = True

    def phases(self, payload: Payload, ranks: int) -> tuple[Phase, ...]:
        return (ring_all_gather(payload.nbytes, ranks),)

    def buffers(self, payload: Payload, ranks: int) -> float:
        return (ranks + 1) * payload.nbytes


@dataclasses.dataclass(frozen=True)
class SharedPositions(ExchangeModel):
    """One rank's positions, and the sum of all ranks' values: `gradwire.exchange.LeaderIndices`.

    The ranks lead for one tensor after the other, so each broadcasts the positions of some.

    References
    ----------
    Chen et al., "ScaleCom: Scalable Sparsified Gradient Compression for Communication-Efficient
    Distributed Training", NeurIPS 2020, section 2.
    """

    before: ClassVar[int] = 1
    sums: ClassVar[bool] = True

    def phases(self, payload: Payload, ranks: int) -> tuple[Phase, ...]:
        """Return the broadcasts, all leaders' at once, and an all-reduce."""
        leaders = max(1, min(ranks, payload.frames))
        sent, rounds = payload.position_bytes, (ranks - 1).bit_length()
        mean = (ranks - 1) * sent / ranks
        return (
            Phase(mean, rounds * sent, rounds, rounds * leaders),
            ring_all_reduce(payload.value_bytes, ranks),
        )

    def buffers(self, payload: Payload, ranks: int) -> float:
        return payload.nbytes + payload.value_bytes


@dataclasses.dataclass(frozen=True)
class SparseReduceScatter(ExchangeModel):
    """Frames are cut by range, each rank sums one range, and the sums are gathered.

    Each frame is cut into N pieces without being decoded. The owner of a range adds up the pieces
    of all ranks, selects six entries of the sum for five that one rank has sent there, and keeps
    the rest in its residual. All ranks gather the frames of all owners: about 2.2 k entries a
    rank.

    References
    ----------
    Renggli, Ashkboos, Aghagolzadeh, Alistarh, Hoefler, "SparCML: High-Performance Sparse
    Communication for Machine Learning", SC 2019, section 5.3.2 (split all-gather), which does not
    select again. Li, Hoefler, "Near-Optimal Sparse Allreduce for Distributed Deep Learning"
    (Ok-Topk), PPoPP 2022, section 3, which does.
    """

    def phases(self, payload: Payload, ranks: int) -> tuple[Phase, ...]:
        """Return four collectives: headers, pieces, the owners' outcomes, and their sums."""
        piece, sums = payload.range(ranks), self._sums(payload, ranks)
        return (
            exchange_all(FRONT + -(-payload.frames // 8), ranks),
            exchange_all(piece.nbytes, ranks),
            ring_all_gather(RESULT, ranks),
            exchange_all(sums.nbytes, ranks),
        )

    def buffers(self, payload: Payload, ranks: int) -> float:
        """Return the bytes of a rank's frame, received pieces, one range, and all sums."""
        sums = ranks * self._sums(payload, ranks).nbytes
        return 2 * payload.nbytes + 4 * payload.numel / ranks + sums

    def _sums(self, payload: Payload, ranks: int) -> Payload:
        piece = payload.range(ranks)
        return dataclasses.replace(piece, entries=min(float(piece.numel), _SUMS * piece.entries))

    def decodes(self, ranks: int) -> float:
        """Return 2: a range of all ranks, then all ranges."""
        return 2.0

    def pieces(self, ranks: int) -> float:
        """Return two for each participant, however few times the entries are decoded."""
        return 2.0 * ranks

    def encodes(self, ranks: int) -> float:
        """Return the whole tensor, and the range that is selected from again."""
        return 1.0 + 1.0 / ranks


@dataclasses.dataclass(frozen=True)
class DenseReduceScatter(SparseReduceScatter):
    """Every entry is sent to owners, which quantize the sums again.

    `gradwire.exchange.QuantizedAllReduce`: a reduce-scatter and an all-gather of dense frames.

    References
    ----------
    Dryden, Moon, Jacobs, Van Essen, "Communication Quantization for Data-Parallel Training of Deep
    Neural Networks", MLHPC 2016, section III.
    """


PLAIN_RING = PlainRing()

MODELS: dict[str, ExchangeModel] = {
    "by_ranks": GatheredFrames(),
    "all_gather": GatheredFrames(),
    "all_reduce": RingAllReduce(),
    "leader_indices": SharedPositions(),
    "reduce_scatter": SparseReduceScatter(),
    "quantized_all_reduce": DenseReduceScatter(),
}
"""The model of every exchange of a codec, by its kind; of `ByRanks`, among few ranks."""


def model_of(exchange: Exchange | ExchangeModel) -> ExchangeModel:
    """Return the model of an exchange; raise a TypeError or ValueError if there is none."""
    if isinstance(exchange, ExchangeModel):
        return exchange
    check_part("exchange", exchange, Exchange)
    kind, known = exchange.kind, ", ".join(MODELS)
    require(kind in MODELS, "the exchange {!r} has no cost model; known are {}", kind, known)
    return MODELS[kind]


@dataclasses.dataclass(frozen=True)
class ExchangeCost:
    """The cost of an exchange.

    Attributes
    ----------
    seconds : float
        Seconds from the last rank's start to the last rank's end, without encoding and decoding.
    sent : float
        Bytes that a rank sends to other nodes; in a flat network, all that it sends.
    sent_inside : float
        Bytes that a rank sends inside its node.
    buffers : float
        Bytes of a rank's buffers.
    before : float
        The part of ``seconds`` for which the encoding thread waits; see `ExchangeModel`.
    """

    seconds: float
    sent: float
    sent_inside: float
    buffers: float
    before: float = 0.0


def simulate(
    exchange: Exchange | ExchangeModel, payload: Payload, network: Network
) -> ExchangeCost:
    """Return the cost of the exchange of a bucket.

    In a network of nodes, ranks sum dense inside a node, and each exchanges its share with its
    partners in the other nodes, as ``attach(hierarchy=)`` does: an all-to-all and an all-gather of
    float32 inside. With plain DDP, nothing is divided: all ranks form one ring that
    leaves and enters each node once.

    Parameters
    ----------
    exchange : gradwire.exchange.Exchange
        How the ranks combine their values; or the ``exchange`` of a `Method`.
    payload : Payload
        Of a rank, for the whole bucket.
    network : Network
        The ranks and their links.

    Returns
    -------
    ExchangeCost
        All zero for a single rank.

    Raises
    ------
    TypeError
        The exchange is none.
    ValueError
        An exchange without a model.

    Examples
    --------
    >>> network = gradwire.cost.Network(8, gradwire.cost.Link(1e9, latency=50e-6))
    >>> dense = gradwire.cost.Payload.dense(25_000_000)
    >>> gradwire.cost.simulate(gradwire.exchange.AllReduce(), dense, network).seconds
    1.4007
    """
    model = model_of(exchange)
    partners, parts = participants(model, network)
    mine = payload.share(parts)
    inside: tuple[Phase, ...] = ()
    if parts > 1:
        dense = 4.0 * payload.numel / parts
        inside = exchange_all(dense, parts), ring_all_gather(dense, parts)
    phases = model.phases(mine, partners)
    if model.divides:  # all ranks of a node use its link at the same time
        times = [
            network.link.seconds(parts * phase.serial, phase.rounds, phase.messages)
            for phase in phases
        ]
    else:
        times = [_one_ring(phase, network) for phase in phases]
    here = sum(
        network.inside.seconds(phase.serial, phase.rounds, phase.messages) for phase in inside
    )
    sent = sum(phase.sent for phase in phases)
    # One rank of a node sends to the next node where all form one ring.
    outside = sent
    if not model.divides:
        outside = sent / network.node_size if network.nodes > 1 else 0.0
    return ExchangeCost(
        sum(times) + here,
        outside,
        sent - outside + sum(phase.sent for phase in inside),
        model.buffers(mine, partners) if network.ranks > 1 else 0.0,
        sum(times[: model.before]),
    )


def participants(model: ExchangeModel, network: Network) -> tuple[int, int]:
    """Return how many ranks exchange the same entries, and into how many parts a node cuts them.

    Each rank of a node exchanges one of these with its partners in the other nodes.
    """
    if model.divides:
        return network.nodes, network.node_size
    return network.ranks, 1


def _one_ring(phase: Phase, network: Network) -> float:
    """Return the seconds of a ring of all ranks: one hop in ``node_size`` is between nodes.

    The ring waits for the latencies of both links. All bytes cross the link between nodes; those
    inside are sent at the same time.
    """
    if network.nodes == 1:
        return network.inside.seconds(phase.serial, phase.rounds, phase.messages)
    far = math.ceil(phase.rounds / network.node_size)
    near = phase.rounds - far
    return network.link.seconds(phase.serial, far, far) + network.inside.seconds(0, near, near)
