"""Predicts the step of a plan from measured figures, by `gradwire.cost`."""

from collections.abc import Mapping, Sequence

from gradwire._auto.setting import (
    BF16,
    FP32,
    OWNERS_FROM,
    Plan,
    Route,
    Setting,
    compresses,
    leaves,
    strength,
)
from gradwire._auto.step_stats import Figures
from gradwire.cost import (
    Calibration,
    Link,
    Method,
    Network,
    Workload,
    bf16,
    compressed,
    fp32,
    predict,
)
from gradwire.cost.exchanges import GatheredFrames
from gradwire.cost.timeline import BucketCost, overlapped
from gradwire.exchange import AllGather, Exchange, QuantizedAllReduce, ReduceScatter

CODEC = "codec"
"""The name of the codec in the calibration."""
_MANY = 64
"""Largest number of buckets for which mixed plans are considered."""


class Model:
    """The cost model with the figures of one model on one link.

    The calibration has the codec under the name `CODEC`; ``ratios`` may be tried, and are empty if
    it has none. With ``owners``, the reduce-scatter is also considered, with `OWNERS_FROM` ranks or
    more. ``probing`` is the seconds spent on measuring the link, the same on all ranks; 0 if steps
    have shown its speed.
    """

    def __init__(
        self,
        figures: Figures,
        ranks: int,
        link: Link,
        calibration: Calibration,
        ratios: Sequence[float],
        *,
        owners: bool = False,
        probing: float = 0.0,
    ) -> None:
        self.figures = figures
        self.link = link
        self.probing = probing
        backward = figures.ready[-1]
        self._rest = max(0.0, figures.compute - backward)
        # Sparse gradients are gathered whatever the plan: the measured time counts, and not the
        # size of the table that they belong to.
        sparse = {
            at
            for at, (nbytes, *applies) in enumerate(
                zip(figures.nbytes, figures.codable, figures.halvable, strict=True)
            )
            if not nbytes and not any(applies)
        }
        # Entries of each bucket that a setting may leave out.
        self.numels = [1 if at in sparse else each for at, each in enumerate(figures.buckets)]
        work = Workload(
            sum(self.numels),
            backward,
            self._rest,
            buckets=self.numels,
            ready=[min(each, backward) for each in sorted(figures.ready)],
            tensors=figures.tensors,
            shared=True,
        )
        network = Network(ranks, link)
        exchanges: list[Route] = ["gather"]
        if owners and ranks >= OWNERS_FROM:
            exchanges.append("owners")

        def predicted(method: Method) -> tuple[BucketCost, ...]:
            return tuple(
                BucketCost(each.backward, 0.0, figures.exchange[at], 0.0) if at in sparse else each
                for at, each in enumerate(predict(work, method, network).buckets)
            )

        self._by: Mapping[Setting, tuple[BucketCost, ...]] = {
            setting: predicted(method)
            for setting, method in _methods(calibration, ratios, exchanges).items()
        }
        self._all: tuple[BucketCost, ...] = ()  # sends the residual when a bucket leaves the codec
        if ratios and CODEC in calibration.codecs:
            self._all = predicted(_of_share(calibration, 1.0, exchanges[-1]))
        # A dense bucket that ends a step of the codec goes with it: by an all-gather, unless
        # buckets have exchanges of their own.
        self._last = self._by[FP32][-1]
        if not owners:
            self._last = predicted(Method("gathered", GatheredFrames()))[-1]
        self._steps: dict[Plan, float] = {}
        self._plans: list[Plan] = []

    @property
    def compute(self) -> float:
        """Seconds of a step without any exchange."""
        return self._rest + self.figures.ready[-1]

    def step(self, plan: Plan) -> float:
        """Return the predicted seconds of a step."""
        if plan not in self._steps:
            self._steps[plan] = self._rest + overlapped(self._buckets(plan), shared=True).end
        return self._steps[plan]

    def leaving(self, plan: Plan, other: Plan) -> float:
        """Return the predicted seconds of the step between two plans that flushes residuals.

        0 if no bucket leaves the codec, or the codec keeps nothing.
        """
        gone = leaves(plan, other)
        if not self._all or not any(gone):
            return 0.0
        buckets = [
            self._all[at] if gone[at] else each for at, each in enumerate(self._buckets(plan))
        ]
        return self._rest + overlapped(buckets, shared=True).end

    def plans(self) -> list[Plan]:
        """Return the plans to consider: each setting wherever it applies, and the best mixture."""
        if self._plans:
            return self._plans
        every = range(len(self.numels))
        uniform = (tuple(self._allowed(at, setting) for at in every) for setting in self._by)
        self._plans = list(dict.fromkeys(uniform))
        best = min(self._plans, key=self.step)
        if 1 < len(best) <= _MANY:
            mixed = self._mixed(best)
            if self.step(mixed) < 0.98 * self.step(best):
                self._plans.append(mixed)
        return self._plans

    def strength(self, plan: Plan) -> float:
        """Return how much a plan leaves out."""
        return strength(plan, self.figures.buckets)

    def _buckets(self, plan: Plan) -> list[BucketCost]:
        buckets = [self._by[setting][at] for at, setting in enumerate(plan)]
        if compresses(plan) and plan[-1].kind != "codec":
            buckets[-1] = self._last
        return buckets

    def _allowed(self, at: int, setting: Setting) -> Setting:
        applies = {"fp32": True, "bf16": self.figures.halvable[at]}
        return setting if applies.get(setting.kind, self.figures.codable[at]) else FP32

    def _mixed(self, start: Plan) -> Plan:
        """Give one bucket after another the setting that makes the step fastest."""
        ratios = {each.ratio for each in start if each.kind == "codec"}
        coded = [each for each in self._by if each.kind == "codec" and each.ratio in ratios]
        plan, seconds = start, self.step(start)
        for at in range(len(plan)):
            # The last bucket ends a step that was encoded in parts: it is dense only if necessary.
            for each in coded if at == len(plan) - 1 else [FP32, BF16, *coded]:
                other = (*plan[:at], self._allowed(at, each), *plan[at + 1 :])
                if self.step(other) < 0.999 * seconds:
                    plan, seconds = other, self.step(other)
        return plan


def _methods(
    calibration: Calibration, ratios: Sequence[float], exchanges: Sequence[Route]
) -> dict[Setting, Method]:
    found = {FP32: fp32(), BF16: bf16(calibration)}
    if CODEC not in calibration.codecs:
        return found
    for exchange in exchanges:
        for ratio in ratios or (None,):
            found[Setting("codec", ratio, exchange)] = _of_share(calibration, ratio, exchange)
    return found


def _of_share(calibration: Calibration, share: float | None, exchange: Route = "gather") -> Method:
    """Return the codec with this exchange and share of the entries."""
    through: Exchange = AllGather()
    if exchange == "owners":
        selects = calibration.codecs[CODEC].codec.sparsify.selects
        through = ReduceScatter() if selects else QuantizedAllReduce()
    method = compressed(CODEC, calibration, through)
    return method if share is None else method.with_share(share)
