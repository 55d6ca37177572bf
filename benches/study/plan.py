"""What is compared, over which links and with how many ranks."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

LINKS: tuple[int | None, ...] = (
    50_000_000,
    100_000_000,
    500_000_000,
    1_000_000_000,
    10_000_000_000,
    None,
)
"""Bits per second of every rank's link, each way; None is not shaped."""

RANKS = (2, 3, 4)
TRAINED_RANKS = (2, 4)
SEEDS = 3
TURNS = 9
PLENTY = 4.0
"""Seconds after which a contestant that has had two turns takes no more."""

LARGE = "25M"
"""The model that is timed and not trained: see `models.Large`."""


@dataclass(frozen=True)
class Section:
    """A model, and with which optimizer it is trained.

    Attributes
    ----------
    name : str
        Of `benches.accuracy`, if the model is trained.
    task : str
        What the processes of ranks time.
    family : {"adamw", "sgd"}
        What methods are compared.
    buckets : tuple of float
        Sizes of DDP's buckets in MiB that the dense methods may choose from.
    steps_a_turn : int
        Steps that are timed together.
    norm : bool
        Statistics of a rank's own batch take part, so that dense training depends on the ranks.
    """

    name: str
    title: str
    task: str
    family: str
    buckets: tuple[float, ...]
    steps_a_turn: int
    norm: bool = False

    @property
    def trained(self) -> bool:
        """Whether there are curves."""
        return self.name != LARGE


SMALL_BUCKETS = (0.25, 1.0, 25.0)

SECTIONS: dict[str, Section] = {
    each.name: each
    for each in (
        Section(LARGE, "25 M parameters", LARGE, "adamw", (5.0, 25.0, 128.0), 1),
        Section("text", "Text", "text", "adamw", SMALL_BUCKETS, 4),
        Section("clicks", "Clicks", "clicks", "adamw", SMALL_BUCKETS, 4),
        Section("fashion", "Fashion-MNIST", "fashion", "adamw", SMALL_BUCKETS, 4, norm=True),
        Section("fashion-sgd", "Fashion-MNIST, SGD", "fashion", "sgd", SMALL_BUCKETS, 4, norm=True),
    )
}


DEFAULT = (LARGE, "text", "clicks", "fashion")
"""Without SGD, which takes another half hour."""


@dataclass(frozen=True)
class Cell:
    """One model with so many ranks over one link."""

    section: str
    ranks: int
    link: int | None


@dataclass(frozen=True)
class Plan:
    """What to measure.

    Attributes
    ----------
    turns : int
        Turns of each method in a cell.
    quick : bool
        Part of the record: figures of a short run are never taken for those of a long one.
    """

    sections: Sequence[str] = DEFAULT
    links: Sequence[int | None] = LINKS
    ranks: Sequence[int] = RANKS
    trained_ranks: Sequence[int] = TRAINED_RANKS
    seeds: int = SEEDS
    turns: int = TURNS
    quick: bool = False
    settling: float = 40.0
    """Seconds that ``auto`` has for a new link, or more where steps are long: see `estimates`."""
    whole_by: float = math.inf
    """Seconds after the start by which whole runs of dense methods have to be over."""
    steps: Mapping[str, int] = field(default_factory=dict)
    """Of a run where they are not those of `benches.accuracy`: for tests."""

    def cells(self) -> list[Cell]:
        """Return the cells, those that share their processes one after the other."""
        return [
            Cell(section, ranks, link)
            for ranks in self.ranks
            for section in self.sections
            for link in self.links
        ]


def quick(sections: Sequence[str] | None = None) -> Plan:
    """Return a plan of at most eight minutes on two cores that do nothing else."""
    chosen = (LARGE, "clicks") if sections is None else tuple(sections)
    links = (100_000_000, 1_000_000_000, None)
    return Plan(
        chosen, links, (2,), (2,), seeds=1, turns=3, quick=True, settling=30.0, whole_by=450.0
    )
