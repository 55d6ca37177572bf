"""``make demo``: train in several processes over a slow link, with and without compression."""

import argparse
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from benches.harness.command import conduct, console, folder, learning_rate
from benches.harness.link import MAX_RANKS
from gradwire import _validate
from gradwire.cli.codecs import unfit
from gradwire.cli.plan import rate

BASELINES = ("none", "bf16")
DESCRIPTION = """\
Train two small models on real data in several processes over a slow link and compare methods
under the same conditions: no compression, torch's bf16 hook, and gradwire's codecs. Every method
is trained with the optimizer that is recommended for it, at its best learning rate.

If you may create network namespaces (as root, or where the system allows it to users), every rank
gets its own, joined by links of the bandwidth you ask for; they disappear when the demo ends.
Otherwise the ranks use the loopback device.
"""


def _names(text: str) -> list[str]:
    return [name for name in (part.strip() for part in text.split(",")) if name]


def _rates(text: str) -> list[int]:
    return list(dict.fromkeys(rate(name) for name in _names(text)))


def _count(least: int, most: int) -> Callable[[str], int]:
    def parse(text: str) -> int:
        if not text.isdecimal() or not least <= int(text) <= most:
            raise argparse.ArgumentTypeError(f"{text!r} is not an integer from {least} to {most}")
        return int(text)

    return parse


def _ratio(text: str) -> float:
    try:
        return _validate.unit_interval("ratio", float(text))
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not a ratio: as 0.01") from None


def _tasks(text: str) -> list[str]:
    names = list(dict.fromkeys(_names(text)))
    if not names or not set(names) <= {"digits", "text"}:
        raise argparse.ArgumentTypeError(
            f"{text!r} is not a list of tasks: choose digits, text or digits,text"
        )
    return names


def parser() -> argparse.ArgumentParser:
    """Return the command line."""
    # fmt: off
    made = argparse.ArgumentParser(
        prog="make demo ARGS=...",
        description=DESCRIPTION,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    made.add_argument("--codec", type=_names, default=["topk", "sidco", "adam"], metavar="NAME,...",
                      help="presets to compare with the baselines none and bf16; `gradwire codecs` "
                      "lists them (default: topk,sidco,adam)")
    made.add_argument("--ratio", type=_ratio, default=0.02,
                      help="share of the entries to send per step (default: %(default)s)")
    made.add_argument("--bandwidth", type=_rates, default=_rates("100mbit,1gbit"),
                      metavar="RATE,...",
                      help="link speeds, such as 100mbit or 2.5gbit (default: 100mbit,1gbit)")
    made.add_argument("--ranks", type=_count(2, MAX_RANKS), default=2,
                      help="number of processes (default: 2)")
    made.add_argument("--steps", type=_count(2, 100_000),
                      help="training steps per run (default: depends on the task, fewer on slow "
                      "machines)")
    made.add_argument("--task", type=_tasks, default=["digits", "text"], metavar="NAME,...",
                      help="digits, text or both (default: both)")
    made.add_argument("--learning-rate", type=learning_rate, metavar="RATE",
                      help="of all methods (default: for each method the best of one grid)")
    made.add_argument("--loopback", action="store_true",
                      help="use the loopback device even if a shaped link is possible")
    made.add_argument("--out", type=Path, default=Path("demo-results"), metavar="DIR",
                      help="folder for demo.png, .svg and .json (default: %(default)s)")
    made.add_argument("--json", action="store_true",
                      help="print the results as JSON instead of tables; progress goes to stderr")
    # fmt: on
    return made


def main(argv: Sequence[str] | None = None) -> int:
    made = parser()
    arguments = made.parse_args(argv)
    for name in arguments.codec:
        if name not in BASELINES and (why := unfit(name)):
            made.error(f"argument --codec: {why}")
    return conduct("make demo", lambda: _run(arguments))


def _run(arguments: argparse.Namespace) -> int:
    from benches.demo.picture import draw
    from benches.demo.runner import Reporter, run
    from benches.demo.table import print_results
    from benches.harness import results as records

    out = folder(arguments.out)
    shown = console(stderr=arguments.json)
    arguments.methods = list(dict.fromkeys((*BASELINES, *arguments.codec)))
    results = run(arguments, Reporter(shown))
    document = results.to_json()
    records.write(document, out / "demo.json")
    for kind in ("png", "svg"):
        draw(results, out / f"demo.{kind}")
    if arguments.json:
        print(records.text(document))
    else:
        print_results(results, shown)
    shown.print(f"\nFigure: {out / 'demo.png'}   data: {out / 'demo.json'}", highlight=False)
    return 0


if __name__ == "__main__":
    sys.exit(main())
