"""Train on the same tasks with every preset, and compare the results."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from benches.harness.command import OutputError, conduct, console, folder, learning_rate
from benches.presets.results import OtherConditionsError, Results
from gradwire import _files
from gradwire.presets import PRESETS

__all__ = ["main", "parser"]

_LARGEST = 1 << 28
"""Bytes of a file of results."""

_DESCRIPTION = """\
Train the demo's two models in several processes, once without compression and once with each
preset, under otherwise equal conditions: same weights, same data, same steps. Every method has the
optimizer that is recommended for it, at its best learning rate. Print for each preset the bytes
sent, the time to encode and decode, and the accuracy of the model.
"""


def _names(text: str, known: Sequence[str], what: str) -> list[str]:
    names = list(dict.fromkeys(name for part in text.split(",") if (name := part.strip())))
    unknown = [name for name in names if name not in known]
    if unknown or not names:
        named = ", ".join(unknown) or repr(text)
        raise argparse.ArgumentTypeError(f"unknown {what} {named}; choose from {', '.join(known)}")
    return names


def _count(text: str, least: int = 2) -> int:
    if not text.isdecimal() or int(text) < least:
        raise argparse.ArgumentTypeError(f"{text!r} is not an integer of at least {least}")
    return int(text)


def parser() -> argparse.ArgumentParser:
    """Return the command line."""
    made = argparse.ArgumentParser(
        prog="python -m benches.presets",
        description=_DESCRIPTION,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    made.add_argument(
        "--codec",
        type=lambda text: _names(text, list(PRESETS), "preset"),
        default=list(PRESETS),
        metavar="NAME,...",
        help="presets to train with (default: all that `gradwire codecs` lists)",
    )
    made.add_argument(
        "--task",
        type=lambda text: _names(text, ("digits", "text"), "task"),
        default=["digits", "text"],
        metavar="NAME,...",
        help="digits, text or both (default: both)",
    )
    made.add_argument(
        "--steps",
        type=_count,
        help="training steps per run (default: depends on the task)",
    )
    made.add_argument("--ranks", type=_count, default=2, help="number of processes (default: 2)")
    made.add_argument(
        "--seeds",
        type=lambda text: _count(text, 1),
        default=1,
        metavar="N",
        help="runs per method, each with its own initial weights and data order; tables show "
        "mean and range (default: 1)",
    )
    made.add_argument(
        "--learning-rate",
        type=learning_rate,
        metavar="RATE",
        help="of all methods (default: for each method the best of one grid)",
    )
    made.add_argument(
        "--out",
        type=Path,
        default=Path("presets-results"),
        metavar="DIR",
        help="folder for codecs.md, codecs.svg and codecs.json (default: %(default)s)",
    )
    made.add_argument(
        "--add",
        action="store_true",
        help="go on with the runs in DIR, of the same machine, versions and settings: make only "
        "those that are missing, keep each as it ends, and show all",
    )
    made.add_argument(
        "--json",
        action="store_true",
        help="print the results as JSON instead of tables; progress goes to stderr",
    )
    return made


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command with these arguments and return the exit status."""
    arguments = parser().parse_args(argv)
    return conduct("python -m benches.presets", lambda: _run(arguments))


def _read(path: Path) -> Results:
    """Return the results in a file, to be added to."""
    try:
        return Results.from_json(_files.read_json(path, _LARGEST))
    except (ValueError, TypeError, KeyError) as error:
        raise OutputError(f"--add: {path} is not a result of this command ({error!r})") from error


def _write(path: Path, results: Results) -> str:
    """Write the results to a file, which is whole at any time, and return the text."""
    text = json.dumps(results.to_json(), indent=1)
    _files.write(path, text + "\n")
    return text


def _run(arguments: argparse.Namespace) -> int:
    from benches.harness.progress import Reporter
    from benches.presets.markdown import document
    from benches.presets.picture import draw
    from benches.presets.runner import Plan, run
    from benches.presets.table import print_table

    out = folder(arguments.out)
    shown = console(stderr=arguments.json)
    plan = Plan(
        tasks=arguments.task,
        presets=arguments.codec,
        steps=arguments.steps,
        ranks=arguments.ranks,
        seeds=arguments.seeds,
        learning_rate=arguments.learning_rate,
    )
    path = out / "codecs.json"
    earlier = _read(path) if arguments.add and path.exists() else None
    try:
        with Reporter(shown) as progress:
            keep = partial(_write, path) if arguments.add else None
            results = run(plan, progress, earlier, keep)
    except OtherConditionsError as error:
        raise OutputError(f"--add: {path}: {error}") from error
    text = _write(path, results)
    draw(results, out / "codecs.svg")
    _files.write(out / "codecs.md", document(results))
    if arguments.json:
        print(text)
    else:
        print_table(results, shown)
    names = ", ".join(f"codecs.{kind}" for kind in ("md", "svg", "json"))
    shown.print(f"\nWritten to {out}: {names}", highlight=False)
    return 0


if __name__ == "__main__":
    sys.exit(main())
