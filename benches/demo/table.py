"""Print the demo's tables, and in words what they show."""

from collections.abc import Callable, Iterable, Sequence

from rich import box
from rich.console import Console
from rich.table import Table

from benches.demo.results import HALF, LABELS, PLAIN, Comparison, Results, Run
from gradwire.cli.plan import format_rate
from gradwire.report.text import size

NOTICEABLE = 1.05
"""On a shared machine a difference in time below this factor is noise, and counts as a draw."""
NOTE = "Judge by the seconds to a loss: docs/study.md says why."


def format_times(factor: float | None) -> str:
    """Return a factor with two or three significant digits, or a dash for None."""
    if factor is None:
        return "-"
    return f"{factor:.{2 if factor < 0.995 else 1 if factor < 99.95 else 0}f}x"


def table(title: str, headings: Sequence[str], rows: Iterable[Sequence[str]], texts: int) -> Table:
    """Return a table whose first columns are texts and whose others are figures."""
    made = Table(title=title, title_justify="left", box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0))
    for at, heading in enumerate(headings):
        made.add_column(heading, justify="left" if at < texts else "right")
    for row in rows:
        made.add_row(*row)
    return made


def training_table(task: str, methods: Iterable[Run]) -> Table:
    """Return a table of what the methods were trained with on a task."""
    rows = [
        (
            run.label,
            run.optimizer,
            f"{run.learning_rate:g}" + (f" ({run.rate_source})" if run.rate_source else ""),
        )
        for run in methods
    ]
    headings = ("method", "optimizer", "learning rate")
    return table(f"{task}: trained with", headings, rows, len(headings))


def link_of(comparison: Comparison) -> str:
    return format_rate(comparison.rate) if comparison.rate else "loopback"


def comparison_table(comparison: Comparison) -> Table:
    """Return one task's figures over one link."""
    budget, target = comparison.equal_time, comparison.equal_loss
    steps = f"{comparison.runs[0].steps} st."

    def sent(run: Run) -> float:
        counted = run.wire_bytes_per_step
        return run.bytes_per_step if counted is None else counted

    def to_loss(run: Run) -> str:
        seconds = run.seconds_to_loss(target)
        return "-" if seconds is None else f"{seconds:.1f}"

    columns: list[tuple[str, Callable[[Run], str]]] = [
        ("method", lambda run: run.label),
        ("ms per\nstep", lambda run: f"{1e3 * run.step:.1f}"),
        ("compute\n%", lambda run: f"{100 * min(1.0, run.compute_seconds / run.step):.0f}"),
        ("sent per\nstep", lambda run: size(sent(run))),
        ("compres-\nsion", lambda run: format_times(run.compression)),
        ("speed\nvs none", lambda run: format_times(comparison.speed_up(run, PLAIN))),
        (f"speed\nvs {HALF}", lambda run: format_times(comparison.speed_up(run, HALF))),
        (f"loss,\n{steps}", lambda run: f"{run.curve[-1]['loss']:.3f}"),
        (f"loss,\n{budget:.1f} s", lambda run: f"{run.at_time(budget, 'loss'):.3f}"),
        (f"acc. %\n{steps}", lambda run: f"{100 * run.curve[-1]['accuracy']:.1f}"),
        (f"acc. %\n{budget:.1f} s", lambda run: f"{100 * run.at_time(budget, 'accuracy'):.1f}"),
        (f"s to loss\n{target:.3f}", to_loss),
    ]
    rows = [[figure(run) for _, figure in columns] for run in comparison.runs]
    title = f"{comparison.title}, {link_of(comparison)}"
    return table(title, [heading for heading, _ in columns], rows, 1)


def print_results(results: Results, console: Console) -> None:
    """Print a table per task and link, what was used to train, and `reading`."""
    for comparison in results.comparisons():
        console.print(comparison_table(comparison))
    for task in results.tasks:
        # What a method is trained with does not depend on the link.
        runs = {run.method: run for run in results.runs if run.task == task}
        console.print(training_table(task, runs.values()))
    console.print(NOTE, style="dim", highlight=False)
    for line in reading(results):
        console.print(f"* {line}", highlight=False)


def reading(results: Results) -> list[str]:
    """Return the lines; the last one says whether all replicas are equal."""
    lines = [_line(comparison) for comparison in results.comparisons()]
    broken = {f"{e.task}/{e.method}": e for e in results.runs if not e.replicas_identical}
    if broken:
        named = ", ".join(broken)
        return [*lines, f"WARNING: the ranks' models differ after {named}. Please report this bug."]
    return [*lines, "In every run, all ranks ended with bit-identical models."]


def _line(comparison: Comparison) -> str:
    """Return what a comparison shows, by methods with the optimizer's family or another one."""
    where = f"{comparison.task}, {link_of(comparison)}"
    rivals = [run for run in comparison.runs if run.method in LABELS]
    ours = [run for run in comparison.runs if run.method not in LABELS]
    rival = min(rivals, key=comparison.reached)
    like = [run for run in ours if run.optimizer_family == rival.optimizer_family]
    groups = (like, [run for run in ours if run not in like])
    said = [
        _verdict(comparison, min(each, key=comparison.reached), rival) for each in groups if each
    ]
    return f"{where}: {' '.join(said) or f'{rival.label} has the shortest steps.'}"


def _verdict(comparison: Comparison, best: Run, rival: Run) -> str:
    own, other = comparison.reached(best), comparison.reached(rival)
    pays = "compression does not pay" if other / own <= 1 / NOTICEABLE else "a draw"
    if other / own >= NOTICEABLE:
        pays = "compression pays"
    text = (
        f"{pays}: {best.label} reaches loss {comparison.equal_loss:.3f} after {own:.1f} s, "
        f"{rival.label} after {other:.1f} s; its steps are {rival.step / best.step:.1f}x as fast"
    )
    if best.optimizer_family != rival.optimizer_family:
        text += (
            f", and part of the difference is due to {best.optimizer} instead of {rival.optimizer}"
        )
    return f"{text}."
