"""Which plans are worth to be measured once more."""

from dataclasses import dataclass

from gradwire.auto.known import Known
from gradwire.auto.model import Model
from gradwire.auto.prospects import estimate, promising
from gradwire.auto.setting import Plan

__all__ = ["FEW", "SOME", "Challenge", "beaten", "challenge", "enough"]

FEW, SOME = 3, 12
"""Steps that a plan is measured for: the least, and the least if it is close to another."""
CLOSELY = 60.0
"""Seconds of steps that are enough for that, however few these are, but not below the least."""
DOUBT, BRIEFLY, ONCE = 1.5, 2.0, 4.0
"""A plan that was beaten by less is measured once more: one that was measured for more than a
second, for less, and for fewer steps than three. Other things may have held it up."""
CLOSE = 1.5
"""A plan in use is compared again with those whose step took less than so many times its step."""
BEATEN, LATER = 0.1, 64
"""A plan in use is doubted if another one was measured to take so much less than it takes now, so
many steps ago or more; twice as many for each time that it was compared."""


@dataclass(frozen=True)
class Challenge:
    """A plan to be compared with the one in use.

    Attributes
    ----------
    plan : tuple of Setting
    expected : float
        Seconds of a step.
    measured : bool
        That is what was measured; else it is predicted.
    lost : float
        Seconds that the comparison is expected to lose.
    leaving : float
        Seconds of the step that sends all, if it leaves the codec; a part of the above, which also
        has that of the way back.
    urgent : bool
        It had been faster than the plan in use is now.
    """

    plan: Plan
    expected: float
    measured: bool
    lost: float
    leaving: float
    urgent: bool


def enough(seconds: float) -> int:
    """Return for how many steps of so many seconds a plan that is close to another is measured."""
    return max(FEW, min(SOME, int(CLOSELY / seconds)))


def beaten(known: Known, best: Plan, again: set[Plan]) -> Plan | None:
    """Return the fastest plan that was beaten, but not beyond doubt, nor measured again."""
    found = []
    for plan, timed in known.timed.items():
        if plan == best or plan in again or timed.at > known.timed[best].at:
            continue
        doubt = ONCE if timed.steps < FEW else BRIEFLY if timed.lasted < 1.0 else DOUBT
        if timed.seconds < doubt * known.timed[best].seconds:
            found.append(plan)
    return min(found, key=lambda plan: known.timed[plan].seconds, default=None)


def challenge(model: Model, known: Known, used: Plan, at: int, settling: int) -> Challenge | None:
    """Return what to compare with the plan in use, if anything, the most urgent first.

    Parameters
    ----------
    model : Model
    known : Known
    used : tuple of Setting
    at : int
        Steps since the beginning.
    settling : int
        Steps after a change that are not measured.
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
    free = [plan for plan in others if not known.held(plan, at)]
    close = [plan for plan in free if others[plan].seconds < CLOSE * mine.seconds]
    alike = [plan for plan in free if not _leaves(used, plan)]

    def oldest(plans: list[Plan]) -> Plan | None:
        return min(plans, key=lambda plan: others[plan].at, default=None)

    plan = oldest(faster) or oldest(close) or promising(model, known, at) or oldest(alike)
    if plan is None:
        return None
    measured = plan in others
    expected = others[plan].seconds if measured else estimate(model, known, plan)[0]
    leaving = model.leaving(used, plan)
    steps = settling + (enough(expected) if expected < CLOSE * mine.seconds else FEW)
    back = model.leaving(plan, used)
    lost = leaving + back + steps * max(0.0, expected - mine.seconds)
    return Challenge(plan, expected, measured, lost, leaving, plan in faster)


def _leaves(plan: Plan, other: Plan) -> bool:
    """Tell whether some bucket leaves the codec."""
    return any(a.kind == "codec" != b.kind for a, b in zip(plan, other, strict=True))
