"""Which runs to make: for each method a search for its learning rate, then more seeds.

Codecs that compute AdamW's step are trained at the best rate of uncompressed training instead, and
the default one once at half and at twice that rate: nobody who attaches one tunes it.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import fmean

ADAM_GRID = tuple(1e-3 * 2.0**i for i in range(-2, 7))
SGD_GRID = tuple(0.05 * 2.0**i for i in range(-5, 8))
_DENSE = ("dense AdamW", "dense AdamW, β1 0.95", "dense AdamW, β2 0.95")
Methods = dict[tuple[str, int], tuple[float, float] | None]
SEEDS = 3
QUICK = 4
"""A quick run makes this part of the steps."""


MEASURES = {
    "accuracy": ("accuracy %", "held-out accuracy (%)"),
    "auc": ("AUC, points", "AUC (points)"),
}
"""What is compared: a share that is better if it is larger; its heading, and that of an axis."""


@dataclass(frozen=True)
class Section:
    """A task with one family of optimizers: what one table compares.

    Raise ``edition`` when the task changes, so that old runs are not taken for new ones.
    ``methods`` has the two rates at which each search begins, by method and number of ranks; None
    for a method without a search. A grid of one rate is not searched. A section that is ``large``
    is made only where it is named, with one seed.
    """

    name: str
    task: str
    edition: int
    title: str
    size: str
    measure: str
    steps: int
    methods: Methods
    grid: tuple[float, ...] = ADAM_GRID
    baselines: tuple[str, ...] = _DENSE
    evaluations: int = 6
    large: bool = False

    def value(self, points: Sequence[Mapping[str, float]]) -> float:
        return points[-1][self.measure]


@dataclass(frozen=True)
class Run:
    section: str
    method: str
    ranks: int
    learning_rate: float
    seed: int


DEFAULT = "adam(0.01)"
UPDATES = (DEFAULT, "adam(0.002)", "adam_onebit()")
AT_ONE_RATE = (*UPDATES, "adam(0.01), all-gather")
_LOW: Methods = {("adam(0.01), low_memory", 2): None}
_MOMENTUM = ("topk(0.01), SGD", "dgc(0.01)")


def _adam(first: float, *, dense_too: bool = False) -> Methods:
    """Return the methods of a section with AdamW, by where their searches begin."""
    once = (first, 2 * first)
    found: Methods = {(method, 2): once for method in (*_DENSE, "topk(0.01), AdamW")}
    found |= {(method, 2): None for method in UPDATES}
    if dense_too:
        found |= {(method, 8): once for method in _DENSE}
    return found | {(method, 8): None for method in AT_ONE_RATE}


def _without_search(dense: str, rate: float, *methods: str) -> Methods:
    return {(dense, 2): (rate, rate), **{(each, n): None for each in methods for n in (2, 8)}}


_MUON = _without_search("dense Muon", 0.02, "muon(0.2)", "muon(0.1)")  # text: 0.01, 0.04 are worse

SECTIONS: dict[str, Section] = {
    each.name: each
    for each in (
        Section("text", "text", 1, "Text, AdamW", "0.43 M", "accuracy", 2400, _adam(2e-3) | _LOW),
        Section(
            "fashion", "fashion", 1, "Fashion-MNIST, AdamW", "0.08 M", "accuracy", 1400,
            # BatchNorm sees a rank's own batch, so dense training depends on the ranks as well.
            _adam(4e-3, dense_too=True) | _LOW,
        ),
        Section(
            "fashion-sgd", "fashion", 1, "Fashion-MNIST, SGD with momentum", "0.08 M",
            "accuracy", 1400,
            {
                **{(method, 2): (0.1, 0.2) for method in ("dense SGD", *_MOMENTUM)},
                # Without momentum steps are a tenth as long.
                ("topk(0.01), SGD without momentum", 2): (0.8, 1.6),
            },
            grid=SGD_GRID, baselines=("dense SGD",),
        ),
        Section(
            "text-muon", "text", 1, "Text, Muon", "0.43 M", "accuracy", 2400, _MUON, (0.02,),
            ("dense Muon",), large=True,
        ),
        Section("clicks", "clicks", 1, "Clicks, AdamW", "0.34 M", "auc", 2000, _adam(8e-3)),
        Section("headers", "headers", 1, "Headers, AdamW", "0.49 M", "accuracy", 1200, _adam(8e-3)),
        Section(
            "code", "code", 1, "Code, AdamW", "10.9 M", "accuracy", 800,
            _without_search("dense AdamW", 1e-3, "adam(0.01)"), (1e-3,), ("dense AdamW",), 8, True,
        ),
        Section(
            "code-muon", "code", 1, "Code, Muon", "10.9 M", "accuracy", 800, _MUON, (0.02,),
            ("dense Muon",), 8, True,
        ),
    )
}  # fmt: skip
MADE = tuple(name for name, each in SECTIONS.items() if not each.large)

Scores = Mapping[Run, float]
"""The measure of every finished run; minus infinity if it diverged."""


@dataclass(frozen=True)
class Plan:
    """What to run; a quick one has fewer steps, the two first rates only, one seed, two ranks."""

    sections: Sequence[str] = MADE
    seeds: int = SEEDS
    quick: bool = False

    def steps(self, section: str) -> int:
        return SECTIONS[section].steps // (QUICK if self.quick else 1)

    def series(self) -> Iterator[tuple[Section, str, int]]:
        """Yield section, method and ranks of every search."""
        for name in self.sections:
            for method, ranks in SECTIONS[name].methods:
                if ranks == 2 or not self.quick:
                    yield SECTIONS[name], method, ranks

    def missing(self, scores: Scores) -> list[Run]:
        found: list[tuple[int, int, Run]] = []
        for section, method, ranks in self.series():
            for stage, run in self._missing(section, method, ranks, scores):
                found.append((ranks, stage, run))
        found.sort(key=lambda each: each[:2])
        return [run for _, _, run in found]

    def best(self, section: Section, method: str, ranks: int, scores: Scores) -> float | None:
        """Return the rate with the best mean over all seeds; None before the series is complete.

        It is complete before lucky runs are made again, which may overturn the choice.
        """
        if any(stage <= 3 for stage, _ in self._missing(section, method, ranks, scores)):
            return None
        if section.methods[method, ranks] is None:
            return self._given(section, ranks, scores)
        start, seeds = Run(section.name, method, ranks, 0.0, 0), self._seeds(section)
        means = {
            rate: _mean(start, rate, seeds, scores)
            for rate in section.grid
            if all(replace(start, learning_rate=rate, seed=seed) in scores for seed in seeds)
        }
        return max(means, key=lambda rate: means[rate])

    def _seeds(self, section: Section) -> range:
        return range(1 if self.quick or section.large else self.seeds)

    def _given(self, section: Section, ranks: int, scores: Scores) -> float | None:
        """Return the best rate of the uncompressed baseline, with as many ranks or else with 2."""
        dense = section.baselines[0]
        return self.best(section, dense, ranks if (dense, ranks) in section.methods else 2, scores)

    def _missing(
        self, section: Section, method: str, ranks: int, scores: Scores
    ) -> list[tuple[int, Run]]:
        """Return what one series needs next, each with its stage.

        A method without a search gets all seeds at the rate it is given, the default one also one
        seed at half and at twice that. A search starts with two neighbouring rates of the grid and
        goes on until the rates next to the best one are known. The best rate and the better of its
        neighbours get all seeds, and then each rate whose one run is better than the best mean. If
        another rate then has that mean, the rates on both sides of it are tried as well.
        """
        start, grid = Run(section.name, method, ranks, 0.0, 0), section.grid
        seeds = self._seeds(section)

        def lacking(places: Iterable[int], seeds: Iterable[int]) -> list[Run]:
            every = [
                replace(start, learning_rate=grid[i], seed=seed) for seed in seeds for i in places
            ]
            return [run for run in every if run not in scores]

        def beside(place: int) -> list[int]:
            return [i for i in (place - 1, place + 1) if 0 <= i < len(grid)]

        begin = section.methods[method, ranks]
        if begin is None:
            given = self._given(section, ranks, scores)
            if given is None:
                return []
            place = nearest(grid, given)
            alone = self.quick or method != DEFAULT
            once = [] if alone else lacking(beside(place), (0,))
            return [*((2, run) for run in lacking([place], seeds)), *((4, run) for run in once)]
        if len(grid) == 1:
            return [(0, run) for run in lacking([0], seeds)]
        if wanted := lacking([nearest(grid, rate) for rate in begin], (0,)):
            return [(0, run) for run in wanted]
        if self.quick:
            return []
        tried = {
            i: _mean(start, rate, (0,), scores)
            for i, rate in enumerate(grid)
            if not lacking([i], (0,))
        }
        best = max(tried, key=lambda i: tried[i])
        if wanted := lacking(beside(best), (0,)):
            return [(1, run) for run in wanted]
        second = max(beside(best), key=lambda i: tried[i])
        if wanted := lacking([best, second], seeds):
            return [(2, run) for run in wanted]
        means = {i: _mean(start, grid[i], seeds, scores) for i in tried if not lacking([i], seeds)}
        found = max(means, key=lambda i: means[i])
        if wanted := lacking(beside(found), (0,)):
            return [(3, run) for run in wanted]
        lucky = [i for i in tried if i not in means and tried[i] > means[found]]
        return [(4, run) for run in lacking(lucky, seeds)]


def _mean(start: Run, rate: float, seeds: Iterable[int], scores: Scores) -> float:
    return fmean(scores[replace(start, learning_rate=rate, seed=seed)] for seed in seeds)


def nearest(grid: Sequence[float], rate: float) -> int:
    return min(range(len(grid)), key=lambda i: abs(grid[i] - rate))
