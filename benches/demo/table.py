"""Print the demo's tables, and what is said under them of how methods were trained."""

from collections.abc import Callable, Iterable, Sequence

from rich import box
from rich.console import Console
from rich.table import Table

from benches.demo.results import LABELS, PLAIN, Comparison, Results, Run
from benches.harness.recipes import measured_rates
from gradwire.cli.plan.quantities import format_rate, size

ONE_TABLE_WIDTH = 112  # terminal columns needed to show all figures in one table


def format_seconds(seconds: float | None) -> str:
    """Return seconds with one decimal, or a dash for None."""
    return "-" if seconds is None else f"{seconds:.1f}"


def format_times(factor: float | None) -> str:
    """Return a factor with two or three significant digits, or a dash for None."""
    if factor is None:
        return "-"
    return f"{factor:.{2 if factor < 0.995 else 1 if factor < 99.95 else 0}f}x"


def table(
    title: str | None,
    headings: Sequence[str],
    rows: Iterable[Sequence[str]],
    *,
    texts: int = 1,
    wrap: bool = True,
) -> Table:
    """Return a table whose first columns are texts and whose others are figures."""
    made = Table(
        title=title,
        title_justify="left",
        title_style="bold",
        box=box.SIMPLE_HEAD,
        pad_edge=False,
        padding=(0, 1, 0, 0),
    )
    for at, heading in enumerate(headings):
        made.add_column(heading, justify="left" if at < texts else "right", no_wrap=not wrap)
    for row in rows:
        made.add_row(*row)
    return made


def format_learning_rate(trained: Run) -> str:
    """Return a learning rate, and where it comes from if that is worth a remark."""
    source = f" ({trained.rate_source})" if trained.rate_source else ""
    return f"{trained.learning_rate:g}{source}"


def training_table(task: str, methods: Iterable[Run]) -> Table:
    """Return a table of what the methods were trained with on a task."""
    headings = ("method", "optimizer", "learning rate")
    rows = [(each.label, each.optimizer, format_learning_rate(each)) for each in methods]
    return table(f"{task}: trained with", headings, rows, texts=len(headings))


def about() -> str:
    """Return how optimizers and learning rates were chosen."""
    settings = measured_rates()["settings"]
    seeds = ", ".join(
        f"{' and '.join(map(str, seeds))} on {task}" for task, seeds in settings["seeds"].items()
    )
    return (
        "Every method uses the optimizer recommended for it, torch's AdamW(beta1, beta2) or "
        "SGD(momentum). The learning rate "
        f"is the best of one grid for all methods, {settings['grid']}, by held-out loss after "
        f"{settings['steps']} steps (seeds {seeds}), unless a remark says otherwise; "
        "--learning-rate sets another."
    )


Column = tuple[str, Callable[[Run], str]]


def comparison_tables(comparison: Comparison, width: int) -> list[Table]:
    """Return one task's figures over one link: one table, or two if the terminal is narrow."""
    half, budget, target = comparison.half, comparison.equal_time, comparison.equal_loss
    steps = f"{comparison.runs[0].steps} st."
    speed: list[Column] = [
        ("ms per\nstep", lambda run: f"{1e3 * run.step:.1f}"),
        ("compute\n%", lambda run: f"{100 * run.compute_share:.0f}"),
        ("sent per\nstep", lambda run: size(run.sent_per_step)),
        ("compres-\nsion", lambda run: format_times(run.compression)),
        ("speed\nvs none", lambda run: format_times(comparison.speed_up(run, PLAIN))),
        (f"speed\nvs {half}", lambda run: format_times(comparison.speed_up(run, half))),
    ]
    learning: list[Column] = [
        (f"loss,\n{steps}", lambda run: f"{run.curve[-1]['loss']:.3f}"),
        (f"loss,\n{budget:.1f} s", lambda run: f"{run.at_time(budget, 'loss'):.3f}"),
        (f"acc. %\n{steps}", lambda run: f"{100 * run.curve[-1]['accuracy']:.1f}"),
        (f"acc. %\n{budget:.1f} s", lambda run: f"{100 * run.at_time(budget, 'accuracy'):.1f}"),
        (f"s to loss\n{target:.3f}", lambda run: format_seconds(run.seconds_to_loss(target))),
    ]
    groups = [[*speed, *learning]] if width >= ONE_TABLE_WIDTH else [speed, learning]
    link = format_rate(comparison.rate) if comparison.rate else "loopback"
    made = []
    for title, columns in zip([f"{comparison.title}, {link}", None], groups, strict=False):
        rows = [[run.label, *(figure(run) for _, figure in columns)] for run in comparison.runs]
        made.append(table(title, ["method", *(name for name, _ in columns)], rows, wrap=False))
    return made


def print_results(results: Results, console: Console) -> None:
    """Print a table per task and link, what was used to train, the key, and `reading`."""
    for comparison in results.comparisons():
        console.print()
        for made in comparison_tables(comparison, console.width):
            console.print(made)
    for task in results.tasks:
        # What a method is trained with does not depend on the link.
        runs = {run.method: run for run in results.runs if run.task == task}
        console.print(training_table(task, runs.values()))
    console.print(f"{_key(results)} {about()}", style="dim", highlight=False)
    console.print()
    for line in reading(results):
        console.print(f"* {line}", highlight=False)


def _key(results: Results) -> str:
    shaped = "counted at its interface, packet headers included"
    counted = shaped if results.link["shaped"] else "payload only"
    return (
        "ms per step: median. compute %: the duration of a step without any exchange, in % of "
        "the step; the rest is coding, sending and waiting. sent per step: bytes that a rank "
        f"sends, {counted}. compression: bytes of plain float32 over those of the method, payload "
        "only. speed: relative to no compression and to 16 bits. loss, acc. (accuracy): on held-"
        "out data, after the same number of steps (st.) and after the same time, namely when the"
        " fastest method finishes; evaluation time is excluded. s to loss: seconds of training "
        "until the lowest loss that every method reached."
    )


# On a shared machine a difference in time below this factor is noise, and counts as a draw.
NOTICEABLE = 1.05


def reading(results: Results) -> list[str]:
    """Return the lines; the last one says whether all replicas are equal."""
    lines = [_line(comparison) for comparison in results.comparisons()]
    return [*lines, replicas(results.runs)]


def _line(comparison: Comparison) -> str:
    """Return what a comparison shows, between methods with optimizers of one family."""
    where = f"{comparison.task}, {format_rate(comparison.rate) if comparison.rate else 'loopback'}"
    ours = [run for run in comparison.runs if run.method not in LABELS]
    rivals = [run for run in comparison.runs if run.method in LABELS]
    if not ours or not rivals:
        return f"{where}: {_said(comparison.fastest)} has the shortest steps."
    rival = min(rivals, key=lambda run: _reached(comparison, run))
    others = [run for run in ours if run.optimizer_family != rival.optimizer_family]
    like = [run for run in ours if run not in others]
    said = [_verdict(comparison, like, rival, rivals)] if like else []
    if others:
        best = min(others, key=lambda run: _reached(comparison, run))
        soon, late = (_reached(comparison, run) for run in (best, rival))
        said.append(
            f"{best.label} trains with {best.optimizer} instead of {rival.optimizer} and reaches "
            f"loss {comparison.equal_loss:.3f} after {soon:.1f} s, {_said(rival)} after {late:.1f} "
            "s: part of the difference is due to the optimizer."
        )
    return f"{where}: {' '.join(said)}"


def _verdict(comparison: Comparison, ours: list[Run], rival: Run, rivals: list[Run]) -> str:
    best = min(ours, key=lambda run: _reached(comparison, run))
    sooner = _reached(comparison, rival) / _reached(comparison, best)
    loss = f"loss {comparison.equal_loss:.3f}"
    if sooner >= NOTICEABLE:
        took = _reached(comparison, best)
        each = (f"{_reached(comparison, r) / took:.1f}x sooner than {_said(r)}" for r in rivals)
        gain = f"{best.label} reaches {loss} {' and '.join(each)}"
        return f"compression pays. {gain}. {_steps(best, rivals)}"
    if sooner > 1 / NOTICEABLE:
        both = f"{best.label} and {_said(rival)}"
        return f"a draw. {both} reach {loss} at the same time. {_steps(best, rivals)}"
    return (
        f"compression does not pay. {_said(rival)} reaches {loss} "
        f"{1 / sooner:.1f}x sooner than {best.label}. {_why_not(best, rival)}"
    )


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
    if named := ", ".join(broken):
        return f"WARNING: the ranks' models differ after {named}. Please report this bug."
    return "In every run, all ranks ended with bit-identical models."
