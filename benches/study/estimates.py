"""About how long steps take, before anything was timed."""

from .plan import LARGE, SECTIONS, Cell, Plan

NUMEL = {"25M": 25.2e6, "text": 0.43e6, "clicks": 0.34e6, "fashion": 0.08e6}
COMPUTE = {"25M": 0.5, "text": 0.03, "clicks": 0.005, "fashion": 0.04}
"""Entries of the models, and seconds of a step without exchange with two ranks of a core each."""

FP32, BF16, CODEC = 4.0, 2.0, 0.05
"""Bytes of an entry, on average, as a method sends it."""

DENSE_STEPS, OWN_STEPS = 4, 40
"""Steps that ``auto`` takes until it has settled, about: in fp32, and with a codec."""


def step(cell: Cell, nbytes: float) -> float:
    """Return about how many seconds a step takes that sends so many bytes for each entry."""
    task = SECTIONS[cell.section].task
    compute = COMPUTE[task] * (cell.ranks / 2 if cell.section == LARGE else 1)
    if cell.link is None:
        return compute
    ring = 2 * (cell.ranks - 1) / cell.ranks
    return compute + 8 * ring * nbytes * NUMEL[task] / cell.link


def settling(cell: Cell) -> float:
    """Return about how many seconds ``auto`` takes until it has settled."""
    return DENSE_STEPS * step(cell, FP32) + OWN_STEPS * step(cell, CODEC)


def settling_limit(cell: Cell, plan: Plan) -> float:
    """Return the seconds after which ``auto`` is timed, settled or not."""
    return max(plan.settling, settling(cell))
