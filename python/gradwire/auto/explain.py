"""The reason for a decision, in a sentence for reports."""

from gradwire.auto.measurements import Measurements
from gradwire.auto.model import Model
from gradwire.auto.setting import FP32, Plan, describe
from gradwire.auto.step_stats import Figures

__all__ = ["again", "settled", "trying"]


def trying(plan: Plan, predicted: float, best: Plan, known: Measurements) -> str:
    """Explain why a plan is tried."""
    return (
        f"It tries {describe(plan)}, which is predicted to take {_ms(predicted)} per step where "
        f"{describe(best)} takes {_ms(known.timed[best].seconds)}."
    )


def again(plan: Plan, best: Plan, known: Measurements) -> str:
    """Explain why a plan is measured once more."""
    return (
        f"It measures {describe(plan)} once more, which took {_ms(known.timed[plan].seconds)} per "
        f"step where {describe(best)} takes {_ms(known.timed[best].seconds)}."
    )


def settled(best: Plan, known: Measurements, model: Model | None, figures: Figures) -> str:
    """Explain why a plan is in use."""
    begin = f"It averages by {describe(best)}: a step takes {_ms(known.timed[best].seconds)}"
    if model is None:
        return (
            f"{begin}, of which the exchange delays {_ms(figures.exposed)} beyond the backward "
            "pass, so that no codec could gain more."
        )
    others = [
        f"{_ms(timed.seconds)} was measured with {describe(plan)}"
        for plan, timed in known.timed.items()
        if plan != best
    ]
    dense = tuple(FP32 for _ in best)
    if dense not in known.timed and len(dense) == len(model.figures.buckets):
        others.append(f"{_ms(model.step(dense))} is predicted with {describe(dense)}")
    rest = "; ".join(others)
    return (
        f"{begin}{', while ' * bool(rest)}{rest}, over a link of "
        f"{_rate(model.link.bandwidth)} with a latency of {1e3 * model.link.latency:.2g} ms and a "
        f"computation of {_ms(model.compute)}."
    )


def _ms(seconds: float) -> str:
    milliseconds = 1e3 * seconds
    return f"{milliseconds:.0f} ms" if milliseconds >= 100 else f"{milliseconds:.3g} ms"


def _rate(bits: float) -> str:
    return f"{bits / 1e9:.3g} Gbit/s" if bits >= 1e9 else f"{bits / 1e6:.3g} Mbit/s"
