"""Tables for a terminal, and what is said under them of how the methods were trained."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from rich import box
from rich.table import Table

from benches.harness.rates import table as rates
from benches.harness.trained import Trained

__all__ = ["about", "format_learning_rate", "table", "training_table"]


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


def format_learning_rate(trained: Trained) -> str:
    """Return a learning rate, and where it comes from if that is worth a remark."""
    source = f" ({trained.rate_source})" if trained.rate_source else ""
    return f"{trained.learning_rate:g}{source}"


def training_table(task: str, methods: Iterable[Trained]) -> Table:
    """Return a table of what the methods were trained with on a task."""
    headings = ("method", "optimizer", "learning rate")
    rows = [(each.label, each.optimizer, format_learning_rate(each)) for each in methods]
    return table(f"{task}: trained with", headings, rows, texts=len(headings))


def about() -> str:
    """Return how optimizers and learning rates were chosen."""
    settings = rates()["settings"]
    seeds = ", ".join(
        f"{' and '.join(map(str, seeds))} on {task}" for task, seeds in settings["seeds"].items()
    )
    return (
        "Every method has the optimizer that is recommended for it: AdamW(beta1, beta2) and "
        "SGD(momentum) are torch's, those of gradwire.torch.optim are named so. The learning rate "
        f"is the best of one grid for all methods, {settings['grid']}, by held-out loss after "
        f"{settings['steps']} steps (seeds {seeds}), unless a remark says otherwise; "
        "--learning-rate sets another."
    )
