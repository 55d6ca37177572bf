"""Which plans may be faster than those that were measured, by predictions that may be wrong."""

import math

from gradwire.auto.known import LESS, Known
from gradwire.auto.model import Model
from gradwire.auto.setting import Plan, compresses

__all__ = ["estimate", "promising"]

GAIN = 0.03
"""A plan is tried if it may be so much faster than the best that is known."""
UNSEEN = 0.6
"""The share of its prediction that a plan may take if none of its kind was measured."""
SEEN = 0.95
"""The same if the prediction is corrected by what others of its kind have taken."""
FIRST = 2.0
"""The codec is tried before dense plans if they are predicted to take so many times as long."""


def estimate(model: Model, known: Known, plan: Plan) -> tuple[float, float]:
    """Return the predicted step, and the least that it may turn out to be.

    Predictions are corrected by what measured plans have shown: those with the same kinds of
    settings, or else, for each kind, those that have it in most entries. The codec with another
    exchange is another kind. What nothing was measured of may take `UNSEEN` of its prediction: a
    plan with the codec in one bucket tells little of the codec in all.
    """
    predicted = model.step(plan)
    factors = [
        (other, timed.seconds / model.step(other))
        for other, timed in known.timed.items()
        if len(other) == len(plan)
    ]
    same = [factor for other, factor in factors if _kinds(other) == _kinds(plan)]
    if same:
        predicted, share = predicted * _middle(same), SEEN
    else:
        correction, share = 0.0, 0.0
        for kind, part in _parts(model, plan).items():
            found = [
                factor for other, factor in factors if _parts(model, other).get(kind, 0.0) > 0.5
            ]
            correction += part * math.log(_middle(found))
            share += part * (SEEN if found else UNSEEN)
        predicted *= math.exp(correction)
    # Threads of an exchange may take the processor from the backward pass, but hardly half of it.
    floor = model.compute - 0.5 * model.figures.ready[-1]
    return predicted, max(floor, share * predicted)


def promising(model: Model, known: Known, at: int) -> Plan | None:
    """Return the plan to be tried next, if any may gain.

    Of plans whose predicted steps differ by 1 % or less it is the one that leaves out the least.
    Dense plans come first, unless the codec is predicted to be so much faster that its measured
    step can show that they need no trial.
    """
    best = known.fastest()
    seconds = known.timed[best].seconds
    dense: dict[Plan, float] = {}
    coded: dict[Plan, float] = {}
    for plan in model.plans():
        if plan in known.timed or known.held(plan, at):
            continue
        # What leaves out less need not gain anything.
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


_Kind = tuple[str, str]


def _kinds(plan: Plan) -> set[_Kind]:
    """Return what a plan has of settings whose predictions may be wrong in different ways."""
    return {(each.kind, each.exchange) for each in plan}


def _parts(model: Model, plan: Plan) -> dict[_Kind, float]:
    """Return the share of the entries that have each kind of setting."""
    found: dict[_Kind, float] = dict.fromkeys(_kinds(plan), 0.0)
    whole = sum(model.numels)
    for numel, each in zip(model.numels, plan, strict=True):
        found[each.kind, each.exchange] += numel / whole
    return found


def _middle(factors: list[float]) -> float:
    """Return the geometric mean; 1 of none."""
    return math.exp(sum(map(math.log, factors)) / len(factors)) if factors else 1.0
