"""What is compared, over which links and with how many ranks."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import gradwire
from benches.accuracy.methods import METHODS as TRAINED
from benches.accuracy.methods import Method
from benches.compare.contestants import POWER
from gradwire import Codec
from gradwire.schedule import WarmUp

LINKS: tuple[int | None, ...] = (
    *(50_000_000, 100_000_000, 500_000_000),
    *(1_000_000_000, 10_000_000_000, None),
)
"""Bits per second of every rank's link, each way; None is not shaped."""

LARGE = "25M"
"""The model that is timed and not trained: see `rank.Large`."""

NONE, FP32, BF16 = "no exchange", "fp32", "bf16"
TORCH_POWER = f"torch PowerSGD, rank {POWER}"
DENSE = (FP32, BF16)

CODECS: dict[str, Codec] = {
    **{f"adam({ratio:g})": gradwire.adam(ratio) for ratio in (0.1, 0.05, 0.02, 0.01, 0.002)},
    "adam_onebit()": gradwire.adam_onebit(),
}
"""Of the contestants whose steps are timed."""

METHODS: dict[str, Method | None] = {
    FP32: TRAINED["dense AdamW"],
    BF16: None,  # its curves are recorded
    "adam(0.01)": Method(gradwire.adam(0.01)),
    "adam(0.002), warm-up": Method(gradwire.adam(0.002), schedule=WarmUp((0.05,))),
    "adam_onebit()": TRAINED["adam_onebit()"],
}
"""How each is trained, but for torch's PowerSGD: see `POWER_CURVE`."""

POWER_CURVE = f"powersgd({POWER})"
"""Recorded curves of the PowerSGD that gradwire once had, which stand for those of torch's hook."""

COMPARED = (FP32, BF16, TORCH_POWER, *(name for name in METHODS if name not in DENSE))

SMALL_BUCKETS = (0.25, 1.0, 25.0)


@dataclass(frozen=True)
class Section:
    """A model.

    Dense methods choose from buckets of so many MiB. With ``norm``, statistics of a rank's own
    batch take part, so that dense training depends on the ranks.
    """

    title: str
    buckets: tuple[float, ...] = SMALL_BUCKETS
    steps_a_turn: int = 4
    norm: bool = False


SECTIONS: dict[str, Section] = {
    LARGE: Section("25 M parameters", (5.0, 25.0, 128.0), 1),
    "text": Section("Text"),
    "clicks": Section("Clicks"),
    "fashion": Section("Fashion-MNIST", norm=True),
}
"""The tasks of `benches.accuracy`, and a large model."""


@dataclass(frozen=True)
class Cell:
    """One model with so many ranks over one link."""

    section: str
    ranks: int
    link: int | None


@dataclass(frozen=True)
class Plan:
    sections: Sequence[str] = tuple(SECTIONS)
    links: Sequence[int | None] = LINKS
    ranks: Sequence[int] = (2, 3, 4)
    trained_ranks: Sequence[int] = (2, 4)
    seeds: int = 3
    turns: int = 9

    def cells(self) -> list[Cell]:
        return [
            Cell(section, ranks, link)
            for ranks in self.ranks
            for section in self.sections
            for link in self.links
        ]

    def trained(self) -> Iterator[str]:
        return (section for section in self.sections if section != LARGE)


def contestants(section: str) -> list[tuple[str, str, float | None]]:
    """Return what is timed: its name, its method, and the size of its buckets in MiB.

    Dense methods are timed with buckets of several sizes, methods with phases in each of them. All
    of a cell take turns in the same processes, so that any two of them may be compared.
    """
    found: list[tuple[str, str, float | None]] = [(NONE, NONE, None)]
    for name in COMPARED:
        if name in DENSE:
            sizes = SECTIONS[section].buckets
            found += [(f"{name}, {size:g} MB", name, size) for size in sizes]
        else:
            found += [(part, part, None) for part, _ in phases(section, name)]
    return found


def phases(section: str, method: str) -> tuple[tuple[str, float], ...]:
    """Return the contestants whose steps a method takes, and the share of each.

    A warm-up is the first of ten epochs; a model that is not trained has none.
    """
    if method != "adam(0.002), warm-up":
        return ((method, 1.0),)
    last = "adam(0.002)"
    return ((last, 1.0),) if section == LARGE else (("adam(0.05)", 0.1), (last, 0.9))
