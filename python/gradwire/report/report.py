"""A report: text, JSON, a page or scalars."""

import dataclasses
import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol, SupportsFloat

from gradwire import _files
from gradwire.report import reading
from gradwire.report.figures import ReportFields
from gradwire.report.text import as_text

_OF_A_PARAMETER = ("bytes_per_step", "compression", "achieved", "trimmed", "residual_norm")


class Writer(Protocol):
    """A writer of scalars, such as `torch.utils.tensorboard.SummaryWriter`."""

    def add_scalar(self, tag: str, scalar_value: float, global_step: int, /) -> object:
        """Write one value.

        Parameters
        ----------
        tag : str
            Name of the chart.
        scalar_value : float
            The value.
        global_step : int
            The step that the value belongs to.
        """


def add_scalars(
    writer: Writer,
    figures: ReportFields | Mapping[str, SupportsFloat],
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
    if not isinstance(figures, ReportFields | Mapping):
        raise TypeError(
            "figures must be a Report or the dict of handle.metrics(), "
            f"not a {type(figures).__name__}"
        )
    if isinstance(figures, ReportFields):
        every = {field.name: getattr(figures, field.name) for field in dataclasses.fields(figures)}
        numbers: Mapping[str, SupportsFloat] = {
            name: value
            for name, value in every.items()
            if isinstance(value, int | float) and name not in ("rank", "world_size")
        }
        found = figures.parameters if parameters else ()
    else:
        numbers, found = figures, ()
    for name, number in numbers.items():
        writer.add_scalar(f"{prefix}/{name}", float(number), step)
    for each in found:
        for name in _OF_A_PARAMETER:
            value = getattr(each, name)
            if value is not None:
                writer.add_scalar(f"{prefix}.{name}/{each.name}", float(value), step)


@dataclass(frozen=True, slots=True, repr=False)
class Report(ReportFields):
    """Figures of gradwire on this rank since `attach` or the last reset.

    Attributes
    ----------
    rank, world_size : int
    codec : str
        The codec that was attached, as ``gradwire.adam(ratio=0.01)``.
    carried_by : str
        The backend that transfers frames between ranks: ``"gloo"``, from host memory, or one that
        reads them from the device, such as ``"nccl"``. Names both if values inside a node use a
        different one: ``"gloo between nodes, nccl inside"``.
    step : int
        Backward passes exchanged and not rolled back, ever, including those before a resume.
    steps : int
        Backward passes exchanged, including those that were rolled back.
    collectives : int
        Total number of collectives: one per bucket, or two or more with a leader, a sparse
        gradient, or dense parameters of another dtype than values that are summed.
    wire_bytes : float
        Bytes that this rank sends per step, including unused room in slots. With N ranks, a ring
        all-gather sends N - 1 slots and a ring all-reduce 2 (N - 1) / N vectors; a broadcast
        counts (N - 1) / N messages on every rank, the mean over the steps in which it leads.
    dense_wire_bytes : float
        Bytes that plain DDP would send per step: a ring all-reduce of the same buckets.
    compression : float
        ``dense_wire_bytes / wire_bytes``.
    slot_use : float
        Fraction of the slots that was used.
    achieved : float or None
        Entries sent divided by entries requested, over all compressed parameters; None if the
        sparsifier has no target.
    encode_ms, exchange_ms, decode_ms : float
        Mean milliseconds per step; most of this overlaps the backward pass.
    wait_ms : float
        Mean milliseconds between the last gradient and the end of the exchange: the time that the
        backward pass actually waited.
    residual_norm : float or None
        Current Euclidean norm over all residuals; None if not requested.
    state_bytes : int
        Bytes that this rank keeps for all parameters; see `ParameterReport`.
    parameters : tuple of ParameterReport
    timeline : tuple of BucketTimes
        When the buckets of the last steps were encoded, exchanged and decoded.
    node_wire_bytes, node_ms : float
        Bytes that this rank sends per step to other ranks of its node, dense, and mean milliseconds
        of that; 0 without a hierarchy. The other bytes are of what it sends to other nodes.
    exchange : str
        How the ranks combine frames: the codec's exchange, or what `gradwire.exchange.ByRanks` has
        taken for their number.
    decision : str
        With ``attach(model, "auto")``, what was measured and chosen, in a sentence; other figures
        are of the steps with the codec. With a codec, why nothing is compressed, if nothing is;
        else empty.
    schedule : str
        The schedule, its epoch, and the ratio that is in effect; empty if it changes nothing.
    """

    def to_json(self) -> str:
        """Return the report as JSON, which `from_json` and ``gradwire report`` read."""
        return json.dumps({reading.MARK: reading.VERSION, **dataclasses.asdict(self)}, indent=2)

    @classmethod
    def from_json(cls, text: str) -> "Report":
        """Return the report that `to_json` wrote.

        Parameters
        ----------
        text : str
            JSON of one report.

        Returns
        -------
        Report

        Raises
        ------
        ValueError
            The text is not exactly one report of this version.
        """
        found = read(text)
        if len(found) != 1:
            raise ValueError(f"{len(found)} reports, not one: gradwire.report.read() reads several")
        return found[0]

    def to_html(self) -> str:
        """Return the report as a page that needs no script, font or network; see `page`."""
        from gradwire.report.webpage import page

        return page([self])

    def write_html(self, path: str | os.PathLike[str]) -> None:
        """Write the page of `to_html` into a file, in UTF-8.

        Parameters
        ----------
        path : str or path-like
            The file, which is replaced once the page is complete.

        Raises
        ------
        OSError
            The file cannot be written.
        """
        _files.write(path, self.to_html())

    def to_tensorboard(
        self,
        writer: Writer,
        step: int | None = None,
        *,
        prefix: str = "gradwire",
        parameters: bool = True,
    ) -> None:
        """Write the figures as scalars, as `add_scalars` does.

        Parameters
        ----------
        writer : Writer
            Such as `torch.utils.tensorboard.SummaryWriter`.
        step : int, optional
            The step that the scalars belong to, by default this report's ``step``.
        prefix, parameters
            As of `add_scalars`.
        """
        at = self.step if step is None else step
        add_scalars(writer, self, at, prefix=prefix, parameters=parameters)

    def __repr__(self) -> str:
        return str(self)

    def _repr_html_(self) -> str:
        from gradwire.report.webpage import notebook_cell

        return notebook_cell(self)

    def __str__(self) -> str:
        return as_text(self)


def read(text: str) -> list[Report]:
    """Return the reports in a text that `Report.to_json` wrote, once or several times.

    Parameters
    ----------
    text : str
        JSON: a report, a list of reports, or reports one after another.

    Returns
    -------
    list of Report

    Raises
    ------
    ValueError
        The text is not JSON, or something in it is not a report of this version. The message names
        the field, and the report if there are several.
    """
    found: list[Report] = []
    for each in reading.objects(text):
        try:
            found.append(Report(**reading.to_fields(each)))
        except ValueError as error:
            where = f"report {len(found) + 1}: " if found else ""
            raise ValueError(f"{where}{error}") from None
    return found
