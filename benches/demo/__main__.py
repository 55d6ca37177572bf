"""``make demo``: train in several processes over a slow link, with and without compression."""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from benches.harness.command import command_line, conduct
from benches.harness.link import MAX_RANKS
from gradwire import _validate
from gradwire.cli.codecs import unfit
from gradwire.cli.plan import rate

BASELINES = ("none", "bf16")
TASKS = ("digits", "text")
DESCRIPTION = """\
Train two small models on real data in several processes over a slow link and compare methods
under the same conditions: no compression, torch's bf16 hook, and gradwire's codecs. Every method
is trained with the optimizer that is recommended for it, at its best learning rate.

If you may create network namespaces (as root, or where the system allows it to users), every rank
gets its own, joined by links of the bandwidth you ask for; they disappear when the demo ends.
Otherwise the ranks use the loopback device.
"""


def _names(text: str) -> list[str]:
    return list(dict.fromkeys(filter(None, (part.strip() for part in text.split(",")))))


def _rates(text: str) -> list[int]:
    return [rate(name) for name in _names(text)]


def _ratio(text: str) -> float:
    try:
        return _validate.unit_interval("ratio", float(text))
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not a ratio: as 0.01") from None


def parser() -> argparse.ArgumentParser:
    # fmt: off
    made = command_line("make demo ARGS=...", DESCRIPTION)
    made.add_argument("--codec", type=_names, default=["topk", "sidco", "adam"], metavar="NAME,...",
                      help="presets to compare with the baselines none and bf16; `gradwire codecs` "
                      "lists them (default: topk,sidco,adam)")
    made.add_argument("--ratio", type=_ratio, default=0.02,
                      help="share of the entries to send per step (default: %(default)s)")
    made.add_argument("--bandwidth", type=_rates, default=_rates("100mbit,1gbit"),
                      metavar="RATE,...",
                      help="link speeds, such as 100mbit or 2.5gbit (default: 100mbit,1gbit)")
    made.add_argument("--ranks", type=int, choices=range(2, MAX_RANKS + 1), default=2, metavar="N",
                      help=f"number of processes, 2 to {MAX_RANKS} (default: 2)")
    made.add_argument("--steps", type=int,
                      help="training steps per run (default: depends on the task, fewer on slow "
                      "machines)")
    made.add_argument("--task", choices=TASKS, help="one of the two models (default: both)")
    made.add_argument("--out", type=Path, default=Path("demo-results"), metavar="DIR",
                      help="folder for demo.png, .svg and .json (default: %(default)s)")
    # fmt: on
    return made


def main(argv: Sequence[str] | None = None) -> int:
    made = parser()
    plan = made.parse_args(argv)
    for name in plan.codec:
        if name not in BASELINES and (why := unfit(name)):
            made.error(f"argument --codec: {why}")
    if plan.steps is not None and plan.steps < 2:
        made.error("argument --steps: at least 2")
    plan.methods = list(dict.fromkeys((*BASELINES, *plan.codec)))
    plan.tasks = TASKS if plan.task is None else (plan.task,)
    return conduct("make demo", lambda: _run(plan))


def _run(plan: argparse.Namespace) -> int:
    from benches.demo.picture import draw
    from benches.demo.results import comparisons, shown
    from benches.demo.runner import run
    from benches.harness import results

    plan.out.mkdir(parents=True, exist_ok=True)  # before anything is measured
    document = run(plan)
    results.write(document, plan.out / "demo.json")
    found = comparisons(document)
    for kind in ("png", "svg"):
        draw(found, plan.ratio, plan.out / f"demo.{kind}")
    print(f"\n{shown(found)}\n\nFigure: {plan.out / 'demo.png'}   data: {plan.out / 'demo.json'}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
