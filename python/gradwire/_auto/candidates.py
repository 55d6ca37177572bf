"""Which plans to try, and which to measure again."""

import math
from typing import NamedTuple

from gradwire._auto.measurements import LESS, Measurements
from gradwire._auto.model import Model
from gradwire._auto.setting import Plan, compresses, leaves

GAIN = 0.03
"""Relative gain over the fastest measured plan that makes a plan worth a trial."""
UNSEEN, SEEN = 0.6, 0.95
"""Lower bound of a step relative to its prediction: if no plan of its kind was measured, and if the
prediction is corrected by plans of its kind."""
FIRST = 2.0
"""Ratio of predictions, dense to codec, from which the codec is tried before dense plans."""
FEW, SOME = 3, 12
"""Least number of steps for which a plan is measured; and if it is close to another plan."""
CLOSELY = 60.0
"""Seconds that suffice to compare close plans, even with fewer than `SOME` steps."""
DOUBT, BRIEFLY, ONCE = 1.5, 2.0, 4.0
"""A slower plan is measured again up to this ratio of steps, since something else may have delayed
it: if it was measured for at least a second, for less, and for fewer than `FEW` steps."""
CLOSE = 1.5
"""Ratio of steps up to which a plan is compared again with the plan in use."""
BEATEN, LATER = 0.1, 64
"""The plan in use is doubted if another one was faster by this share, at least so many steps ago;
the number doubles with each comparison."""


def estimate(model: Model, known: Measurements, plan: Plan) -> tuple[float, float]:
    """Return the predicted step of a plan, and a lower bound of it.

    Predictions are corrected by the errors of earlier ones: of plans with the same kinds of
    settings, or else, for each kind, of plans that have it in most entries. The codec with another
    exchange is another kind. Where nothing was measured the bound is `UNSEEN` of the prediction: a
    plan with the codec in one bucket says little about the codec in all buckets.
    """
    predicted, parts = model.step(plan), _parts(model, plan)
    factors = [
        (_parts(model, other), timed.seconds / model.step(other))
        for other, timed in known.timed.items()
        if len(other) == len(plan)
    ]
    same = [factor for others, factor in factors if others.keys() == parts.keys()]
    if same:
        predicted, share = predicted * _middle(same), SEEN
    else:
        correction, share = 0.0, 0.0
        for kind, part in parts.items():
            found = [factor for others, factor in factors if others.get(kind, 0.0) > 0.5]
            correction += part * math.log(_middle(found))
            share += part * (SEEN if found else UNSEEN)
        predicted *= math.exp(correction)
    # Threads of an exchange may take the processor from the backward pass, but hardly half of it.
    floor = model.compute - 0.5 * model.figures.ready[-1]
    return predicted, max(floor, share * predicted)


def promising(model: Model, known: Measurements, at: int) -> Plan | None:
    """Return the plan to try next, or None if none may gain.

    Among plans whose predictions differ by 1 % or less, the one that sends the most is taken.
    Dense plans come first, unless the codec is predicted to be so much faster that they may not
    need a trial after it.
    """
    best = known.fastest()
    seconds = known.timed[best].seconds
    dense: dict[Plan, float] = {}
    coded: dict[Plan, float] = {}
    for plan in model.plans():
        if plan in known.timed or known.is_set_aside(plan, at):
            continue
        # A plan that sends more need not gain anything.
        weaker = model.strength(plan) < model.strength(best)
        predicted, least = estimate(model, known, plan)
        if least < (1.0 + LESS if weaker else 1.0 - GAIN) * seconds:
            (coded if compresses(plan) else dense)[plan] = predicted
    later = dense and coded and FIRST * min(coded.values()) < min(dense.values())
    chosen = coded if later or not dense else dense
    if not chosen:
        return None
    least = min(chosen.values())
    near = [plan for plan, predicted in chosen.items() if predicted <= (1.0 + LESS) * least]
    return min(near, key=model.strength)


def _parts(model: Model, plan: Plan) -> dict[tuple[str, str], float]:
    """Return the share of entries by kind and exchange, for which predictions share errors."""
    found: dict[tuple[str, str], float] = {}
    whole = sum(model.numels)
    for numel, each in zip(model.numels, plan, strict=True):
        kind = each.kind, each.exchange
        found[kind] = found.get(kind, 0.0) + numel / whole
    return found


def _middle(factors: list[float]) -> float:
    """Return the geometric mean; 1 if there are no factors."""
    return math.exp(sum(map(math.log, factors)) / len(factors)) if factors else 1.0


class Challenge(NamedTuple):
    """A plan to compare with the plan in use; all but it and ``urgent`` in seconds.

    Its step is ``expected``, measured or predicted. The comparison is expected to cost ``lost``,
    with the step that flushes residuals if a bucket leaves the codec, which is ``leaving``, and
    that of the way back. It is urgent if the plan was faster than the plan in use is now.
    """

    plan: Plan
    expected: float
    lost: float
    leaving: float
    urgent: bool


def steps_to_compare(seconds: float) -> int:
    """Return for how many steps, of this duration, a plan close to another is measured."""
    return max(FEW, min(SOME, int(CLOSELY / seconds)))


def rematch(known: Measurements, best: Plan, again: set[Plan]) -> Plan | None:
    """Return the fastest plan that may have been slower by chance and was not measured again."""
    found = []
    for plan, timed in known.timed.items():
        if plan == best or plan in again or timed.at > known.timed[best].at:
            continue
        doubt = ONCE if timed.steps < FEW else BRIEFLY if timed.lasted < 1.0 else DOUBT
        if timed.seconds < doubt * known.timed[best].seconds:
            found.append(plan)
    return min(found, key=lambda plan: known.timed[plan].seconds, default=None)


def challenge(
    model: Model, known: Measurements, used: Plan, at: int, settling: int
) -> Challenge | None:
    """Return the plan to compare with the plan in use, the most urgent first, or None.

    ``at`` counts steps since the beginning; ``settling`` of them after a change are not measured.
    """
    mine = known.timed[used]
    others = {plan: timed for plan, timed in known.timed.items() if plan != used}
    faster = [
        plan
        for plan, timed in others.items()
        if timed.seconds < (1.0 - BEATEN) * mine.seconds
        and timed.apart(mine)
        and timed.at + LATER * 2 ** known.failures(plan) <= at
    ]
    free = [plan for plan in others if not known.is_set_aside(plan, at)]
    close = [plan for plan in free if others[plan].seconds < CLOSE * mine.seconds]
    alike = [plan for plan in free if not any(leaves(used, plan))]

    def oldest(plans: list[Plan]) -> Plan | None:
        return min(plans, key=lambda plan: others[plan].at, default=None)

    plan = oldest(faster) or oldest(close) or promising(model, known, at) or oldest(alike)
    if plan is None:
        return None
    expected = others[plan].seconds if plan in others else estimate(model, known, plan)[0]
    leaving = model.leaving(used, plan)
    steps = settling + (steps_to_compare(expected) if expected < CLOSE * mine.seconds else FEW)
    back = model.leaving(plan, used)
    lost = leaving + back + steps * max(0.0, expected - mine.seconds)
    return Challenge(plan, expected, lost, leaving, plan in faster)
