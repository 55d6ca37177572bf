"""Which runs to make: for each method a search for its learning rate, then more seeds."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

ADAM_GRID = tuple(1e-3 * 2.0**i for i in range(-2, 7))
SGD_GRID = tuple(0.05 * 2.0**i for i in range(-5, 8))
SEEDS = 3
QUICK = 4
"""A quick run makes this part of the steps."""


@dataclass(frozen=True)
class Section:
    """A task with one family of optimizers: what one table compares.

    Attributes
    ----------
    edition : int
        Raise it when the task changes, so that old runs are not taken for new ones.
    measure : str
        What is compared, of what the task measures: a share that is better if it is larger.
    grid : tuple of float
        Learning rates, the same for all methods.
    baselines : tuple of str
        Methods that send everything.
    methods : dict
        The two rates at which the search begins, by method and number of ranks.
    """

    name: str
    task: str
    edition: int
    title: str
    measure: str
    steps: int
    grid: tuple[float, ...]
    baselines: tuple[str, ...]
    methods: Mapping[tuple[str, int], tuple[float, float]]


@dataclass(frozen=True)
class Run:
    """One training run."""

    section: str
    method: str
    ranks: int
    learning_rate: float
    seed: int


_UPDATES = ("adam(0.01)", "adam(0.002), warm-up", "adam_onebit()")
_MOMENTUM = ("topk(0.01), SGD", "dgc(0.01)")


def _adam(
    first: float, many: float | None = None, *, dense_too: bool = False
) -> dict[tuple[str, int], tuple[float, float]]:
    """Return the methods of a section with AdamW, by where their searches begin.

    Ours begin at twice the rate with two ranks, and at ``many`` times the rate with eight.
    """
    once, twice = (first, 2 * first), (2 * first, 4 * first)
    found = {("dense AdamW", 2): once, ("topk(0.01), AdamW", 2): once}
    found |= {(method, 2): twice for method in _UPDATES}
    if dense_too:
        found["dense AdamW", 8] = once
    if many is not None:
        found |= {(method, 8): (many * first, 2 * many * first) for method in _UPDATES}
    return found


SECTIONS: dict[str, Section] = {
    each.name: each
    for each in (
        Section(
            "text",
            "text",
            1,
            "Text, AdamW",
            "accuracy",
            2400,
            ADAM_GRID,
            ("dense AdamW",),
            _adam(2e-3, 4),
        ),
        Section(
            "fashion",
            "fashion",
            1,
            "Fashion-MNIST, AdamW",
            "accuracy",
            1400,
            ADAM_GRID,
            ("dense AdamW",),
            # BatchNorm sees a rank's own batch, so dense training depends on the ranks as well.
            _adam(4e-3, 2, dense_too=True),
        ),
        Section(
            "fashion-sgd",
            "fashion",
            1,
            "Fashion-MNIST, SGD with momentum",
            "accuracy",
            1400,
            SGD_GRID,
            ("dense SGD",),
            {
                **{(method, 2): (0.1, 0.2) for method in ("dense SGD", *_MOMENTUM)},
                # Without momentum steps are a tenth as long.
                ("topk(0.01), SGD without momentum", 2): (0.8, 1.6),
            },
        ),
        Section(
            "clicks",
            "clicks",
            1,
            "Clicks, AdamW",
            "auc",
            2000,
            ADAM_GRID,
            ("dense AdamW",),
            _adam(8e-3),
        ),
    )
}

Scores = Mapping[Run, float]
"""The measure of every finished run; minus infinity if it diverged."""


@dataclass(frozen=True)
class Plan:
    """What to run.

    Attributes
    ----------
    sections : sequence of str
    seeds : int
    quick : bool
        Fewer steps, the two first rates only, one seed, two ranks.
    """

    sections: Sequence[str] = tuple(SECTIONS)
    seeds: int = SEEDS
    quick: bool = False

    def steps(self, section: str) -> int:
        """Return the steps of a run."""
        steps = SECTIONS[section].steps
        return steps // QUICK if self.quick else steps

    def series(self) -> Iterator[tuple[Section, str, int]]:
        """Yield section, method and ranks of every search."""
        for name in self.sections:
            for method, ranks in SECTIONS[name].methods:
                if ranks == 2 or not self.quick:
                    yield SECTIONS[name], method, ranks

    def missing(self, scores: Scores) -> list[Run]:
        """Return the runs that are known to be needed and are not there, most telling first."""
        found: list[tuple[int, int, Run]] = []
        for section, method, ranks in self.series():
            for stage, run in self._missing(section, method, ranks, scores):
                found.append((ranks, stage, run))
        found.sort(key=lambda each: each[:2])
        return [run for _, _, run in found]

    def left(self, scores: Scores) -> dict[tuple[str, int], float]:
        """Return about how many runs are left, by task and ranks."""
        left: dict[tuple[str, int], float] = {}
        for section, method, ranks in self.series():
            known: float = len(self._missing(section, method, ranks, scores))
            if known:
                made = sum(
                    (run.section, run.method, run.ranks) == (section.name, method, ranks)
                    for run in scores
                )
                known = max(known, self._usual - made)
            left[section.task, ranks] = left.get((section.task, ranks), 0) + known
        return left

    @property
    def _usual(self) -> float:
        """How many runs a series usually takes: a search tries three or four rates."""
        return 2 if self.quick else 3.5 + 2 * (self.seeds - 1)

    def best(self, section: Section, method: str, ranks: int, scores: Scores) -> float | None:
        """Return the rate with the best mean over all seeds; None before the series is complete."""
        if self._missing(section, method, ranks, scores):
            return None
        means = {
            rate: sum(
                scores[Run(section.name, method, ranks, rate, seed)] for seed in range(self._seeds)
            )
            for rate in section.grid
            if all(
                Run(section.name, method, ranks, rate, seed) in scores
                for seed in range(self._seeds)
            )
        }
        return max(means, key=lambda rate: means[rate])

    @property
    def _seeds(self) -> int:
        return 1 if self.quick else self.seeds

    def _missing(
        self, section: Section, method: str, ranks: int, scores: Scores
    ) -> list[tuple[int, Run]]:
        """Return what one series needs next, each with its stage.

        A search starts with two neighbouring rates of the grid and goes on until the rates next to
        the best one are known. The best rate and the better of its neighbours get all seeds. If it
        is the neighbour then that has the better mean, the rate on its other side is tried as well.
        """
        start = Run(section.name, method, ranks, 0.0, 0)

        def at(rate: float, seed: int = 0) -> Run:
            return replace(start, learning_rate=rate, seed=seed)

        grid = section.grid
        first = [nearest(grid, rate) for rate in section.methods[method, ranks]]
        if wanted := [at(grid[i]) for i in first if at(grid[i]) not in scores]:
            return [(0, run) for run in wanted]
        if self.quick:
            return []
        tried = {i: scores[at(rate)] for i, rate in enumerate(grid) if at(rate) in scores}
        best = max(tried, key=lambda i: tried[i])
        beside = [i for i in (best - 1, best + 1) if 0 <= i < len(grid)]
        if wanted := [at(grid[i]) for i in beside if i not in tried]:
            return [(1, run) for run in wanted]
        second = max(beside, key=lambda i: tried[i])
        if wanted := [
            at(grid[i], seed)
            for seed in range(1, self.seeds)
            for i in (best, second)
            if at(grid[i], seed) not in scores
        ]:
            return [(2, run) for run in wanted]
        means = {
            i: sum(scores[at(grid[i], seed)] for seed in range(self.seeds)) for i in (best, second)
        }
        found = max(means, key=lambda i: means[i])
        beside = [i for i in (found - 1, found + 1) if 0 <= i < len(grid)]
        return [(3, at(grid[i])) for i in beside if i not in tried]


def nearest(grid: Sequence[float], rate: float) -> int:
    """Return the position of the rate in a grid."""
    return min(range(len(grid)), key=lambda i: abs(grid[i] - rate))
