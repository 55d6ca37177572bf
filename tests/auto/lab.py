"""Synthetic models and links with true times of their own, which predictions miss."""

import math
import statistics
from dataclasses import dataclass, field
from random import Random

from gradwire._auto import FP32, Decider, Figures, Model, Plan
from gradwire._auto.setting import compresses
from gradwire._auto.step_stats import spread
from gradwire.cost import Calibration, Link
from gradwire.cost.calibration import CodecCost, Line
from tests.auto.world import CODEC, RATIOS

RECORDS = 64
"""Steps that medians are over, at most, as in training."""


def calibration(encode: float) -> Calibration:
    """A codec that takes so many seconds for an entry, and half of it for what it sends."""
    cost = CodecCost(
        CODEC, Line(2e-5, encode, encode), Line(2e-5, 0.0, 2 * encode), 48.0, 32.0, 0.01, 8.0
    )
    return Calibration({"codec": cost}, 5e-10, 1e-10, 1)


def wrong(random: Random, most: float) -> float:
    """By what a prediction errs, either way."""
    return math.exp(random.uniform(-1.0, 1.0) * math.log(most))


@dataclass
class Lab:
    """One model on one link.

    Attributes
    ----------
    bandwidth : float
    numels : tuple of int
        Of the buckets.
    backward, rest : float
        Seconds of a step.
    noise : float
        A step varies by this share, and one in thirty takes three times as long.
    drift : float
        How many times as long the first seconds' steps take.
    """

    random: Random
    bandwidth: float
    numels: tuple[int, ...]
    backward: float
    rest: float
    encode: float = 1e-9
    latency: float = 1e-4
    noise: float = 0.1
    outliers: float = 1 / 30
    drift: float = 1.0
    warm: float = 1.0
    pause: tuple[int, float] = (0, 0.0)
    """After so many steps something else takes so many seconds, as an evaluation does."""
    factors: dict[str, float] = field(default_factory=dict)
    told: tuple[float, float] = (1.0, 1.0)
    """By what the measured bandwidth and the calibration err."""
    clock: float = 0.0
    steps: int = 0
    lost: float = 0.0
    looks: list[tuple[float, int, Plan]] = field(default_factory=list)
    _true: dict[Plan, float] = field(default_factory=dict)
    _model: Model | None = None

    @property
    def ready(self) -> tuple[float, ...]:
        count = len(self.numels)
        return tuple(self.backward * (at + 1) / count for at in range(count))

    def modelled(self, bandwidth: float, encode: float, figures: Figures | None = None) -> Model:
        bare = figures or self.bare()
        return Model(bare, 2, Link(bandwidth, self.latency), calibration(encode), RATIOS)

    def bare(self) -> Figures:
        some = (True,) * len(self.numels)
        none = (0.0,) * len(self.numels)
        period = self.rest + self.backward
        return Figures(1, period, self.numels, 4, some, some, self.ready, none, none, 0.0)

    def true(self, plan: Plan) -> float:
        """Seconds of a step with a plan, without noise."""
        if plan not in self._true:
            self._model = self._model or self.modelled(self.bandwidth, self.encode)
            compute = self.rest + self.backward
            found = self._model.step(plan)
            over = max(0.0, found - compute)
            factor = math.prod(self.factors.get(kind, 1.0) for kind in {each.kind for each in plan})
            self._true[plan] = compute + factor * over
        return self._true[plan]

    def change(self, bandwidth: float) -> None:
        """Have another link from now on."""
        self.bandwidth = bandwidth
        self._true.clear()
        self._model = None

    def best(self) -> float:
        """Seconds of a step with the best of the plans that are tried."""
        self.true((FP32,) * len(self.numels))
        assert self._model is not None
        return min(self.true(plan) for plan in self._model.plans())

    def model(self, figures: Figures) -> Model:
        """What is predicted."""
        self.clock += 0.2
        return self.modelled(self.told[0] * self.bandwidth, self.told[1] * self.encode, figures)

    def step(self, plan: Plan) -> float:
        """Take a step."""
        seconds = self.true(plan) * math.exp(self.random.gauss(0.0, self.noise))
        if self.random.random() < self.outliers:
            seconds *= 3.0
        if self.clock < self.warm:
            seconds *= self.drift
        self.steps += 1
        if self.pause[0] and self.steps % self.pause[0] == 0:
            seconds += self.pause[1]
        self.clock += seconds
        self.lost += self.true(plan) - self.best()
        return seconds

    def figures(self, plan: Plan, periods: list[float]) -> Figures:
        """What was measured with a plan."""
        bare, last = self.bare(), periods[-RECORDS:]
        period = statistics.median(last)
        over = max(0.0, self.true(plan) - self.rest - self.backward)
        exposed = period * over / self.true(plan)
        # The model explains what it is told.
        assert self._model is not None
        seconds = [self._model._by[setting][at].exchange for at, setting in enumerate(plan)]
        return Figures(
            len(last), period, bare.buckets, 4, bare.codable, bare.halvable, self.ready,
            tuple(seconds), tuple(4.0 * each for each in self.numels), exposed, spread(last),
        )  # fmt: skip

    def run(self, decider: Decider, steps: int = 10**9, *, until_settled: bool = False) -> Plan:
        """Let so many steps pass, or as many as it takes to settle."""
        end, periods = self.steps + steps, list[float]()
        while self.steps < end:
            before = decider.plan
            for at in range(decider.due):
                seconds = self.step(before)
                if at >= decider.skips:
                    periods.append(seconds)
            plan = decider.look(self.figures(before, periods), self)
            if not decider.keeps:
                periods = []
            if compresses(before) and plan != before and not compresses(plan):
                self.step((FP32,) * len(plan))  # one that sends all
            self.looks.append((self.clock, self.steps, plan))
            if until_settled and decider.reason.startswith("Using "):
                break
        return decider.plan


def anywhere(seed: int) -> Lab:
    """A model and a link, of all sizes that are in use."""
    random = Random(seed)

    def between(low: float, high: float) -> float:
        return math.exp(random.uniform(math.log(low), math.log(high)))

    count = random.choice((1, 2, 3, 5, 8))
    total = between(1e5, 1e8)
    compute = between(5e-9, 5e-8) * total + between(1e-3, 2e-2)
    backward = random.uniform(0.4, 0.7) * compute
    return Lab(
        random,
        between(2e7, 5e10),
        (int(total / count),) * count,
        backward,
        compute - backward,
        encode=between(5e-10, 3e-9),
        latency=between(2e-5, 2e-3),
        factors={kind: wrong(random, 1.5) for kind in ("fp32", "bf16", "codec")},
        told=(wrong(random, 1.5), wrong(random, 1.5)),
    )


def fresh(lab: Lab) -> Decider:
    """Return a decider that begins dense."""
    return Decider((FP32,) * len(lab.numels))
