"""Figures as scalars, for TensorBoard and whatever takes its calls."""

from collections.abc import Iterator, Mapping
from dataclasses import fields
from typing import Protocol, SupportsFloat

from gradwire.report.figures import Figures

__all__ = ["Writer", "add_scalars"]

_OF_A_PARAMETER = ("bytes_per_step", "compression", "achieved", "trimmed", "residual_norm")


class Writer(Protocol):
    """What takes scalars: as `torch.utils.tensorboard.SummaryWriter` does."""

    def add_scalar(self, tag: str, scalar_value: float, global_step: int, /) -> object:
        """Take one value."""


def add_scalars(
    writer: Writer,
    figures: Figures | Mapping[str, SupportsFloat],
    step: int,
    *,
    prefix: str = "gradwire",
    parameters: bool = True,
) -> None:
    """Write a report, or the dict of `Handle.metrics`, as scalars.

    Parameters
    ----------
    writer : Writer
        Anything with ``add_scalar(tag, value, step)``, such as
        `torch.utils.tensorboard.SummaryWriter`. It is neither flushed nor closed.
    figures : Report or dict
        Figures that are not available are left out.
    step : int
        The step that the scalars belong to.
    prefix : str
        Tags are ``prefix/wire_bytes`` and so on, and ``prefix.residual_norm/NAME`` for
        the figures of a parameter: one group of charts for each of them.
    parameters : bool
        Write the figures of each parameter, too, if there are any.

    Raises
    ------
    TypeError
        The writer has no ``add_scalar``, or these are not figures.
    """
    if not callable(getattr(writer, "add_scalar", None)):
        raise TypeError(
            f"writer has no add_scalar(tag, value, step): it is a {type(writer).__name__}; "
            "pass a torch.utils.tensorboard.SummaryWriter or the like"
        )
    if not isinstance(figures, Figures | Mapping):
        raise TypeError(
            "figures must be a Report or the dict of handle.metrics(), "
            f"not a {type(figures).__name__}"
        )
    for tag, value in _scalars(figures, prefix, parameters):
        writer.add_scalar(tag, value, step)


def _scalars(
    figures: Figures | Mapping[str, SupportsFloat], prefix: str, parameters: bool
) -> Iterator[tuple[str, float]]:
    if not isinstance(figures, Figures):
        for name, number in figures.items():
            yield f"{prefix}/{name}", float(number)
        return
    for field in fields(figures):
        value = getattr(figures, field.name)
        if isinstance(value, int | float) and field.name not in ("rank", "world_size"):
            yield f"{prefix}/{field.name}", float(value)
    for each in figures.parameters if parameters else ():
        for name in _OF_A_PARAMETER:
            value = getattr(each, name)
            if value is not None:
                yield f"{prefix}.{name}/{each.name}", float(value)
