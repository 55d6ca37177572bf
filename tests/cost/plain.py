"""Collectives among a few participants, message by message: what the cost model is judged by.

Nothing here knows a formula: data is moved until every participant has what it must have.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field


@dataclass
class Wire:
    """Counts the messages and bytes that each participant sends."""

    ranks: int
    nbytes: list[int] = field(default_factory=list)
    messages: list[int] = field(default_factory=list)
    rounds: int = 0

    def __post_init__(self) -> None:
        self.nbytes = [0] * self.ranks
        self.messages = [0] * self.ranks

    def send(self, rank: int, nbytes: int) -> None:
        self.nbytes[rank] += nbytes
        self.messages[rank] += 1

    @property
    def mean(self) -> float:
        return sum(self.nbytes) / self.ranks


def ring_all_reduce(chunks: list[int], wire: Wire) -> None:
    """Sum a vector that is cut into a chunk of so many bytes for each participant."""
    ranks = wire.ranks
    whose: list[list[frozenset[int]]] = [[frozenset([rank])] * ranks for rank in range(ranks)]
    everyone = frozenset(range(ranks))
    while any(each != everyone for mine in whose for each in mine):
        wire.rounds += 1
        sent = []
        for rank in range(ranks):
            chunk = (rank - wire.rounds + 1) % ranks
            wire.send(rank, chunks[chunk])
            sent.append(((rank + 1) % ranks, chunk, whose[rank][chunk]))
        for rank, chunk, partial in sent:
            whose[rank][chunk] |= partial


def ring_all_gather(blocks: list[int], wire: Wire) -> None:
    """Give everyone the blocks of all participants."""
    ranks = wire.ranks
    has = [{rank} for rank in range(ranks)]
    while any(len(each) < ranks for each in has):
        sent = []
        for rank in range(ranks):
            block = (rank - wire.rounds) % ranks
            wire.send(rank, blocks[block])
            sent.append(((rank + 1) % ranks, block))
        for rank, block in sent:
            has[rank].add(block)
        wire.rounds += 1


def broadcast(nbytes: int, wire: Wire) -> None:
    """Give everyone what participant 0 has: all who have it send it on."""
    has = [0]
    while len(has) < wire.ranks:
        for rank in list(has):
            if len(has) < wire.ranks:
                wire.send(rank, nbytes)
                has.append(len(has))
        wire.rounds += 1


def owner(position: int, numel: int, ranks: int) -> int:
    return position * ranks // numel


def pieces(positions: Iterable[int], numel: int, ranks: int) -> list[set[int]]:
    """Cut a selection into the ranges of all owners."""
    made: list[set[int]] = [set() for _ in range(ranks)]
    for position in positions:
        made[owner(position, numel, ranks)].add(position)
    return made


def personalized(matrix: list[list[int]], wire: Wire) -> None:
    """Send the bytes of each row's participant to each column's, all at once."""
    for source, row in enumerate(matrix):
        for target, nbytes in enumerate(row):
            if source != target:
                wire.send(source, nbytes)
    wire.rounds += 1 if wire.ranks > 1 else 0
