"""A world whose every time is known: steps as the cost model has them, with errors of its own."""

import statistics
from dataclasses import dataclass, field, replace
from random import Random

import gradwire
from gradwire._auto import FP32, Decider, Figures, Model, Plan
from gradwire.cost import Calibration, Link
from gradwire.cost.calibration import CodecCost, Line

BUCKETS = (1_000_000, 4_000_000, 4_000_000)
RATIOS = (0.1, 0.05, 0.02, 0.01)
CODEC = gradwire.topk(ratio=0.01)


def calibration(per_numel: float = 1e-9) -> Calibration:
    """A codec that encodes a million entries in a millisecond."""
    line = Line(1e-5, per_numel, 1e-9)
    cost = CodecCost(CODEC, line, Line(1e-5, 0.0, 2e-9), 48.0, 32.0, 0.01, 8.0)
    return Calibration({"codec": cost}, 5e-10, 1e-10, 1)


@dataclass
class World:
    """Two ranks, a link, and times that are those of the model times a factor by kind.

    Attributes
    ----------
    bandwidth : float
        Bits per second of the link.
    wrong : dict
        By what the model errs for plans with a kind of setting.
    jitter : float
        By what share a step may be longer than it should be.
    stall : float
        By what one of the steps before each look is longer, if there are three or more.
    probing : float
        Seconds that measuring the link takes; 0 if steps tell its speed.
    """

    bandwidth: float
    ratios: tuple[float, ...] = RATIOS
    codable: tuple[bool, ...] = (True, True, True)
    wrong: dict[str, float] = field(default_factory=dict)
    compute: float = 0.2
    jitter: float = 0.0
    stall: float = 1.0
    probing: float = 0.0
    random: Random = field(default_factory=lambda: Random(0))
    models: int = 0
    looks: list[tuple[int, Plan]] = field(default_factory=list)
    steps: int = 0

    def model(self, figures: Figures) -> Model:
        self.models += 1
        link = Link(self.bandwidth, 1e-4)
        return Model(figures, 2, link, calibration(), self.ratios, probing=self.probing)

    def figures(self, plan: Plan, steps: int) -> Figures:
        """What would be measured with a plan."""
        ready = (0.0, 0.05, 0.1)
        bare = Figures(
            steps,
            self.compute,
            BUCKETS,
            6,
            self.codable,
            (True, True, True),
            ready,
            (0.0, 0.0, 0.0),
            (0.0, 0.0, 0.0),
            0.0,
        )
        model = Model(bare, 2, Link(self.bandwidth, 1e-4), calibration(), self.ratios)
        seconds = [model._by[setting][at].exchange for at, setting in enumerate(plan)]
        kinds = {each.kind for each in plan}
        factor = max((self.wrong.get(kind, 1.0) for kind in kinds), default=1.0)
        period = factor * model.step(plan)
        return Figures(
            steps,
            period,
            BUCKETS,
            6,
            self.codable,
            (True, True, True),
            ready,
            tuple(seconds),
            tuple(4.0 * each for each in BUCKETS),
            period - (self.compute - ready[-1]) - ready[-1],
        )

    def disturbed(self, figures: Figures) -> Figures:
        """Return figures with the median of steps that take longer than they should."""
        draw = [1.0 + self.jitter * self.random.random() for _ in range(figures.steps)]
        if len(draw) > 2:
            draw[self.random.randrange(len(draw))] *= self.stall
        return replace(figures, period=figures.period * statistics.median(draw))

    def run(self, decider: Decider, steps: int) -> Plan:
        """Let so many steps pass."""
        end, measured = self.steps + steps, 0
        while self.steps + decider.due <= end:
            self.steps += decider.due
            measured += decider.due - decider.skips
            figures = self.disturbed(self.figures(decider.plan, measured))
            plan = decider.look(figures, self)
            self.looks.append((self.steps, plan))
            if not decider.keeps:
                measured = 0
        return decider.plan


def fresh() -> Decider:
    return Decider((FP32, FP32, FP32))
