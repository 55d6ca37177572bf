"""Put the demo's results into words: a line per task and link."""

from __future__ import annotations

from collections.abc import Iterable

from benches.demo.results import LABELS, PLAIN, Comparison, Results, Run
from gradwire.cli.plan.quantities import format_rate

# On a shared machine a difference in time below this factor is noise, and counts as a draw.
NOTICEABLE = 1.05


def reading(results: Results) -> list[str]:
    """Return the lines; the last one says whether all replicas are equal."""
    lines = [_line(comparison) for comparison in results.comparisons()]
    return [*lines, replicas(results.runs)]


def _line(comparison: Comparison) -> str:
    where = f"{comparison.task}, {format_rate(comparison.rate) if comparison.rate else 'loopback'}"
    ours = [run for run in comparison.runs if run.method not in LABELS]
    rivals = [run for run in comparison.runs if run.method in LABELS]
    if not ours or not rivals:
        return f"{where}: {_said(comparison.fastest)} has the shortest steps."
    best = min(ours, key=lambda run: _reached(comparison, run))
    rival = min(rivals, key=lambda run: _reached(comparison, run))
    sooner = _reached(comparison, rival) / _reached(comparison, best)
    loss = f"loss {comparison.equal_loss:.3f}"
    if sooner >= NOTICEABLE:
        return (
            f"{where}: compression pays. {best.label} reaches {loss} "
            f"{_sooner(comparison, best, rivals)}. {_steps(best, rivals)}"
        )
    if sooner > 1 / NOTICEABLE:
        both = f"{best.label} and {_said(rival)}"
        return f"{where}: a draw. {both} reach {loss} at the same time. {_steps(best, rivals)}"
    return (
        f"{where}: compression does not pay. {_said(rival)} reaches {loss} "
        f"{1 / sooner:.1f}x sooner than {best.label}. {_why_not(best, rival)}"
    )


def _sooner(comparison: Comparison, best: Run, rivals: list[Run]) -> str:
    took = _reached(comparison, best)
    factors = ((_reached(comparison, rival) / took, _said(rival)) for rival in rivals)
    return " and ".join(f"{factor:.1f}x sooner than {rival}" for factor, rival in factors)


def _steps(best: Run, rivals: list[Run]) -> str:
    factors = (f"{rival.step / best.step:.1f}x as fast as with {_said(rival)}" for rival in rivals)
    return f"Steps with {best.label} are {' and '.join(factors)}."


def _why_not(best: Run, rival: Run) -> str:
    faster = rival.step / best.step
    if faster >= NOTICEABLE:
        return f"Steps with {best.label} are {faster:.1f}x as fast, but each learns less."
    share = f"{100 * rival.compute_share:.0f} %"
    return f"The link is no bottleneck: even with {_said(rival)}, computing is {share} of a step."


def _said(run: Run) -> str:
    return LABELS[PLAIN] if run.method == PLAIN else run.method


def _reached(comparison: Comparison, run: Run) -> float:
    """Return the seconds until a run reached the loss that all runs reached; always positive."""
    seconds = run.seconds_to_loss(comparison.equal_loss)
    return max(run.seconds if seconds is None else seconds, 1e-9)


def replicas(runs: Iterable[Run]) -> str:
    """Return the line that says whether all ranks ended with equal models."""
    broken = dict.fromkeys(f"{e.task}/{e.method}" for e in runs if not e.replicas_identical)
    if broken:
        named = ", ".join(broken)
        return f"WARNING: the ranks' models differ after {named}. Please report this bug."
    return "In every run, all ranks ended with bit-identical models."
