"""Say what each method was trained with, under the tables of results."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

from rich import box
from rich.table import Table

from benches.harness.rates import table

__all__ = ["Trained", "about", "format_rate", "training_table"]


class Trained(Protocol):
    """A run, or several of one method."""

    @property
    def label(self) -> str:
        """The name of the method."""

    @property
    def optimizer(self) -> str:
        """The optimizer in words, without its learning rate."""

    @property
    def learning_rate(self) -> float:
        """The highest learning rate of the schedule."""

    @property
    def rate_source(self) -> str:
        """Where the rate comes from, if it was not measured with the method itself."""


def format_rate(trained: Trained) -> str:
    """Return a learning rate, and where it comes from if that is worth a remark."""
    source = f" ({trained.rate_source})" if trained.rate_source else ""
    return f"{trained.learning_rate:g}{source}"


def training_table(task: str, methods: Iterable[Trained]) -> Table:
    """Return a table of what the methods were trained with on a task."""
    made = Table(
        title=f"{task}: trained with",
        title_justify="left",
        title_style="bold",
        box=box.SIMPLE_HEAD,
        pad_edge=False,
        padding=(0, 1, 0, 0),
    )
    for heading in ("method", "optimizer", "learning rate"):
        made.add_column(heading)
    for each in methods:
        made.add_row(each.label, each.optimizer, format_rate(each))
    return made


def about() -> str:
    """Return how optimizers and learning rates were chosen."""
    settings = table()["settings"]
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
