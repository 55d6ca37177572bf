"""``gradwire plan``: predict the step time of dense training and of codecs, on any link."""

import argparse
import dataclasses
import importlib.util
import json
import math
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from gradwire.cli.plan import quantities
from gradwire.cli.plan.predictions import OPTIMIZERS, Plan, Row, Scenario, build_codecs, plan
from gradwire.cli.plan.quantities import duration, format_rate, format_rates, size
from gradwire.cli.terminal import ProgressLine, width, wrapped
from gradwire.cli.theme import STYLE, save
from gradwire.cost import Calibration, Link, Workload, calibrate

__all__ = ["main"]

_DESCRIPTION = """\
Predict the time of a training step with plain DDP, in float32 and bfloat16, and with codecs, for a
range of ranks on a link, and print the link speed and the backward pass below which each codec pays
off: a long backward pass hides an uncompressed exchange.

The codecs are first measured on this machine for a few seconds each. --save keeps the result, and
--calibration reuses it. Encoding takes processor time from the backward pass, as in training on
CPUs; with --no-shared, it only overlaps with it. Byte counts are exact if they do not depend on
gradients; otherwise they are measured on heavy-tailed random numbers.
"""


def make_parser() -> argparse.ArgumentParser:
    """Return the parser of the command line."""
    parser = argparse.ArgumentParser(
        prog="gradwire plan",
        description=_DESCRIPTION,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add("--model-size", type=quantities.count, metavar="N",
        help="parameters of the model, such as 25M; with --module, they are counted")  # fmt: skip
    add("--ranks", type=quantities.ranks, default=quantities.ranks("2..64"), metavar="N,...",
        help="numbers of ranks: a list, or a range such as 2..10000, of which powers of two and "
        "the ends are shown (default: 2..64)")  # fmt: skip
    add("--link", type=quantities.rate, required=True, metavar="RATE",
        help="speed of each node's link, such as 1gbit")  # fmt: skip
    add("--latency", type=quantities.seconds, default=50e-6, metavar="TIME",
        help="latency of the link (default: 50us)")  # fmt: skip
    add("--overhead", type=quantities.seconds, default=5e-6, metavar="TIME",
        help="time a rank spends on each message it sends (default: 5us)")  # fmt: skip
    add("--node-size", type=quantities.count, default=1, metavar="N",
        help="ranks that share a link, uncompressed inside (default: 1)")  # fmt: skip
    add("--inside", type=quantities.rate, default=100_000_000_000, metavar="RATE",
        help="speed of a rank's link inside its node (default: 100gbit)")  # fmt: skip
    add("--backward", type=quantities.seconds, metavar="TIME",
        help="time of the backward pass, which exchanges overlap")  # fmt: skip
    add("--module", metavar="PACKAGE.MODULE:FUNCTION",
        help="measure the backward pass here: FUNCTION() returns the model and a function that "
        "does one forward and backward pass with it (needs torch)")  # fmt: skip
    add("--other", type=quantities.seconds, metavar="TIME",
        help="time of the rest: forward pass, optimizer (default: half of --backward)")  # fmt: skip
    add("--optimizer", choices=OPTIMIZERS, default="adamw",
        help="optimizer that the codecs have to suit (default: adamw)")  # fmt: skip
    add("--tensors", type=quantities.count, metavar="N",
        help="tensors in the model (default: one per 200 000 parameters)")  # fmt: skip
    add("--shared", action=argparse.BooleanOptionalAction,
        help="the backward pass runs on the cores that encode (default: unless a --module is on "
        "another device)")  # fmt: skip
    add("--codecs", type=quantities.names, metavar="NAME,...",
        help="presets; NAME/scatter uses a reduce-scatter instead of its exchange; `gradwire "
        "codecs` lists them (default: the one that suits --optimizer)")  # fmt: skip
    add("--ratio", type=quantities.ratio, default=0.01,
        help="fraction of the entries to send (default: %(default)s)")  # fmt: skip
    add("--seconds", type=quantities.bare_seconds, default=1.0, metavar="TIME",
        help="approximate time to measure a codec, such as 0.2 or 200ms (default: 1)")  # fmt: skip
    add("--calibration", type=Path, metavar="FILE", help="use what --save wrote; do not measure")
    add("--save", type=Path, metavar="FILE", help="write the measurements")
    add("--svg", type=Path, metavar="FILE", help="plot step times over ranks (needs matplotlib)")
    add("--json", action="store_true", help="print JSON instead of tables")
    return parser


def main(argv: Sequence[str]) -> int:
    """Print a plan; return 0, 1 if a file cannot be read or written, 2 for an invalid command."""
    parser = make_parser()
    options = parser.parse_args(argv)
    if options.svg is not None and importlib.util.find_spec("matplotlib") is None:
        print("gradwire plan: --svg needs matplotlib: pip install matplotlib", file=sys.stderr)
        return 2
    names = options.codecs or [OPTIMIZERS[options.optimizer].codec]
    try:
        _check(options)
        codecs = build_codecs(names, options.ratio, options.node_size)
    except ValueError as error:
        parser.error(str(error))
    try:
        if options.calibration is not None:
            calibration = Calibration.load(options.calibration)
        else:
            with ProgressLine("gradwire plan: measuring codecs") as progress:
                calibration = calibrate(codecs, seconds=options.seconds, progress=progress)
        found = plan(_scenario(options), names, codecs, calibration)
        if options.save is not None:
            calibration.save(options.save)
        if options.svg is not None:
            _draw(found, options.svg)
    except (OSError, ValueError) as error:
        print(f"gradwire plan: {error}", file=sys.stderr)
        return 1
    if complaint := _disturbed(calibration):
        print(f"gradwire plan: warning: {complaint}", file=sys.stderr)
    print(json.dumps(found.to_json(), indent=1) if options.json else "\n".join(_lines(found)))
    return 0


def _disturbed(calibration: Calibration) -> str | None:
    """Return a warning that other programs slowed the calibration down; None if not."""
    try:
        others, processors = (float(calibration.machine[each]) for each in ("others", "processors"))
    except (KeyError, TypeError, ValueError):  # an older file, or no such figures on this system
        return None
    if not others + calibration.threads > 1.1 * processors:
        return None
    return (
        f"other programs used {others:.1f} of {processors:.0f} processors while codecs were "
        "measured: their times may be too high"
    )


def _check(options: argparse.Namespace) -> None:
    """Raise a ValueError for options that do not fit together."""
    if options.seconds == 0.0:
        raise ValueError("argument --seconds: must be above 0")
    if not any(each % options.node_size == 0 for each in options.ranks):
        raise ValueError(
            f"argument --ranks: none of {', '.join(map(str, options.ranks))} fills nodes of "
            f"{options.node_size}"
        )
    if options.module is not None:
        for name in ("model_size", "backward", "tensors"):
            if getattr(options, name) is not None:
                flag = "--" + name.replace("_", "-")
                raise ValueError(f"argument {flag}: leave it out; --module measures it")
        if not all(options.module.partition(":")):
            raise ValueError(
                f"argument --module: {options.module!r} is not PACKAGE.MODULE:FUNCTION, such as "
                "train:step"
            )
    elif options.model_size is None:
        raise ValueError("argument --model-size: give the parameters of the model, such as 25M")
    elif not options.backward:
        raise ValueError(
            "argument --backward: give the time of one backward pass, such as 500ms, or a --module "
            "to measure: it decides whether compression pays"
        )


def _scenario(options: argparse.Namespace) -> Scenario:
    return Scenario(
        _workload(options),
        OPTIMIZERS[options.optimizer],
        tuple(each for each in options.ranks if each % options.node_size == 0),
        Link(float(options.link), options.latency, options.overhead),
        options.node_size,
        Link(float(options.inside), min(options.latency, 5e-6), min(options.overhead, 5e-6)),
        options.ratio,
    )


def _workload(options: argparse.Namespace) -> Workload:
    """Return the step that the options describe, or that ``--module`` measures."""
    if options.module is None:
        other = options.backward / 2 if options.other is None else options.other
        return Workload(
            options.model_size,
            options.backward,
            other,
            tensors=options.tensors,
            shared=options.shared is not False,
        )
    module, _, name = options.module.partition(":")
    sys.path.insert(0, "")  # as `python -m` does
    try:
        measure_workload = importlib.import_module("gradwire.torch.cost").measure_workload
        made = getattr(importlib.import_module(module), name)()
        if not (isinstance(made, tuple) and len(made) == 2 and callable(made[1])):
            raise TypeError(f"must return (model, function of a step), got {made!r}")
        with ProgressLine("gradwire plan: measuring the backward pass") as progress:
            found: Workload = measure_workload(*made, shared=options.shared, progress=progress)
    except Exception as error:  # whatever the user's function raises
        raise ValueError(f"--module {options.module}: {type(error).__name__}: {error}") from error
    finally:
        sys.path.remove("")
    return found if options.other is None else dataclasses.replace(found, other=options.other)


_COLUMNS = 8  # numbers of ranks in one row of a table, at most
_PIPED = 220  # columns of a file, which eight numbers of ranks fit into


def _lines(plan: Plan) -> list[str]:
    """Return the lines that ``gradwire plan`` prints, with as many ranks as fit into its width."""
    columns = width(_PIPED)
    for count in range(min(_COLUMNS, len(plan.scenario.ranks)), 0, -1):
        lines = _tables(plan, _shown(len(plan.scenario.ranks), count), columns)
        if max(map(len, lines)) <= columns:
            break
    return lines


def _tables(plan: Plan, shown: Sequence[int], columns: int) -> list[str]:
    """Return all tables, with a column for each of these numbers of ranks."""
    scenario = plan.scenario

    def notes(text: str) -> list[str]:
        return wrapped(text, columns).splitlines()

    workload, link, optimizer = scenario.workload, scenario.link, scenario.optimizer
    nodes = f", nodes of {scenario.node_size}" if scenario.node_size > 1 else ""
    lines = notes(
        f"{workload.numel:,} parameters over {format_rate(link.bandwidth)}{nodes}, latency "
        f"{duration(link.latency)}; backward pass {duration(workload.backward)}, rest of a step "
        f"{duration(workload.other)}; {optimizer.name}"
    )
    if len(shown) < len(scenario.ranks):
        lines += notes(f"{len(shown)} of {len(scenario.ranks)} numbers of ranks; --json has all")
    lines.append("")
    winners = plan.winners()

    def step(row: Row, at: int) -> str:
        return duration(row.predictions[at].step)

    def speedup(row: Row, at: int) -> str:
        mark = "*" if winners[at] is row else " " if row.suits else "!"
        return f"{plan.speedup(row, at):.3g}x {mark}"

    lines += _table("step time", plan, shown, step, speedup)
    lines += notes(f"speed-up over fp32; * the fastest that suits {optimizer.name}")
    if not all(row.suits for row in plan.rows):
        lines += notes(f"! costs accuracy with {optimizer.name}, or `attach` refuses it")
    ranges = [pair for row in plan.rows for pair in (*(row.links or ()), *(row.passes or ()))]
    for title, cell in (
        ("pays on links below", lambda row, at: _range(row.links, at, format_rates)),
        ("pays if backward is below", lambda row, at: _range(row.passes, at, _durations)),
    ):
        lines += ["", *_table(title, plan, shown, cell)]
    if any(low for low, high in ranges if high):
        lines += notes("> above this, A..B between these")
    lines += ["", *_table("sent", plan, shown, lambda row, at: size(row.predictions[at].sent))]
    lines += [*notes("bytes per rank and step, to other nodes"), ""]
    lines += _table("memory", plan, shown, lambda row, at: size(row.memory[at]))
    own = size(optimizer.state_bytes * workload.numel)
    replaced = [each.method.name for each in plan.rows if _replaces(plan, each)]
    lines += notes(
        "bytes per rank, without model and gradients: states of optimizer and codec, and buffers. "
        f"{optimizer.name}'s own state takes {own}"
        + (f", and is replaced by that of {' and '.join(replaced)}" if replaced else "")
    )
    return lines


def _replaces(plan: Plan, row: Row) -> bool:
    cost, optimizer = row.method.cost, plan.scenario.optimizer
    return bool(optimizer.state_bytes and cost and optimizer.replaced_by(cost.codec))


def _shown(ranks: int, count: int) -> list[int]:
    """Return the numbers of ranks that get a column: at most as many as fit, evenly spread."""
    return sorted({round((ranks - 1) * at / max(count - 1, 1)) for at in range(count)})


def _table(
    title: str, plan: Plan, shown: Sequence[int], *cells: Callable[[Row, int], str]
) -> list[str]:
    """Return a table with a column for each number of ranks, or as many as there are cells."""
    ranks, more = plan.scenario.ranks, ["speed-up  "] * (len(cells) - 1)
    table = [[title]]
    for at in shown:
        table[0] += [f"{ranks[at]:,} ranks" if ranks[at] > 1 else "1 rank", *more]
    table += [
        [row.method.name, *(cell(row, at) for at in shown for cell in cells)] for row in plan.rows
    ]
    widths = [max(map(len, column)) for column in zip(*table, strict=True)]
    return [
        "  ".join(
            [line[0].ljust(widths[0])]
            + [text.rjust(width) for text, width in zip(line[1:], widths[1:], strict=True)]
        ).rstrip()
        for line in table
    ]


_Ranges = Sequence[tuple[float, float]] | None


def _range(ranges: _Ranges, at: int, text: Callable[[float, float], str]) -> str:
    if ranges is None:
        return "-"
    low, high = ranges[at]
    if high == 0.0:
        return "never"
    return "always" if (low, high) == (0.0, math.inf) else text(low, high)


def _durations(low: float, high: float) -> str:
    if low == 0.0:
        return duration(high)
    return f"> {duration(low)}" if math.isinf(high) else f"{duration(low)}..{duration(high)}"


# Okabe and Ito's palette; markers carry the same information.
_COLOURS = ("#808080", "#b0a000", "#0080c4", "#D55E00", "#009E73", "#CC79A7", "#56B4E9", "#E69F00")
_MARKERS = "osv^DPX*"


def _draw(plan: Plan, path: Path) -> None:
    """Draw step times over the number of ranks."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    scenario = plan.scenario
    with plt.rc_context(STYLE):
        figure, axes = plt.subplots(figsize=(9.0, 5.2), layout="constrained")
        for at, row in enumerate(plan.rows):
            axes.plot(
                scenario.ranks,
                [each.step for each in row.predictions],
                label=row.method.name,
                color=_COLOURS[at % len(_COLOURS)],
                marker=_MARKERS[at % len(_MARKERS)],
                markersize=5,
            )
        axes.axhline(scenario.workload.compute, color="#808080", linewidth=1, linestyle=":")
        axes.set_xscale("log", base=2)
        axes.set_yscale("log")
        axes.set_xticks(scenario.ranks, [f"{each:,}" for each in scenario.ranks], rotation=45)
        axes.set_xticks([], minor=True)
        axes.set_xlabel("ranks")
        axes.set_ylabel("seconds per step")
        axes.set_title(
            f"{scenario.workload.numel:,} parameters, {format_rate(scenario.link.bandwidth)}; "
            "dotted: no exchange"
        )
        axes.grid(visible=True, linewidth=0.8)
        axes.set_axisbelow(True)
        axes.spines[["top", "right"]].set_visible(False)
        axes.legend(frameon=False, ncols=2)
        save(figure, path)
        plt.close(figure)
