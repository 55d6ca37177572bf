"""Train to the end with and without compression, each method at its best learning rate.

A run that is finished is kept in the folder of the results: the same command goes on where it was
interrupted. Runs of the published results with the same settings are not made again. All of them
take about six hours on two cores that do nothing else; with --quick twenty minutes.
"""

import argparse
import sys
from pathlib import Path

from benches.harness import results
from benches.harness.command import command_line, conduct
from benches.harness.results import Record

from . import pool, show, store
from .plan import MADE, SECTIONS, SEEDS, Plan, Run
from .store import Planned
from .summary import summarize
from .tasks import fashion_data


def arguments(given: list[str] | None = None) -> argparse.Namespace:
    parser = command_line("make accuracy ARGS=...", __doc__)
    # fmt: off
    parser.add_argument("--quick", action="store_true",
                        help="a quarter of the steps, two rates, one seed, 2 ranks")
    parser.add_argument("--only", nargs="+", choices=SECTIONS, default=MADE, metavar="NAME",
                        help=f"of {', '.join(SECTIONS)} (default: {' '.join(MADE)})")
    parser.add_argument("--seeds", type=int, default=SEEDS,
                        help="runs of each result (default: %(default)s)")
    parser.add_argument("--jobs", type=int, default=results.cores(),
                        help="processes of one thread each (default: cores)")
    parser.add_argument("--data", type=Path, metavar="DIR",
                        help="folder with the four files of Fashion-MNIST")
    parser.add_argument("--out", type=Path, default=Path("accuracy-results"), metavar="DIR",
                        help="folder of runs, tables and figure (default: %(default)s)")
    # fmt: on
    chosen = parser.parse_args(given)
    for name in ("seeds", "jobs"):
        if getattr(chosen, name) < 1:
            parser.error(f"--{name} must be at least 1")
    return chosen


def main(given: list[str] | None = None) -> int:
    chosen = arguments(given)
    sections = tuple(name for name in SECTIONS if name in chosen.only)
    return conduct(
        "make accuracy",
        lambda: make(Plan(sections, chosen.seeds, chosen.quick), chosen),
        (pool.WorkerError, fashion_data.MissingDataError),
        f"finished runs are in {chosen.out}, and the same command goes on from there",
    )


def make(plan: Plan, chosen: argparse.Namespace) -> int:
    chosen.out.mkdir(parents=True, exist_ok=True)
    _, published = store.read(store.PUBLISHED)
    work = Planned(plan, results.Store(chosen.out / "runs.jsonl"), published["runs"])
    if any(SECTIONS[name].task == "fashion" for name in plan.sections):
        fashion_data.folder(chosen.data)  # before anything else: it may have to be fetched
    print(f"{len(work.records())} runs are there already", flush=True)
    try:
        pool.make(work, chosen.jobs, chosen.data, lambda run, record: tell(work, run, record))
    finally:
        write(work, chosen.out)
    return 0


def tell(work: Planned, run: Run, record: Record) -> None:
    shown = "diverged"
    if not record["diverged"]:
        value = SECTIONS[run.section].value(record["points"])
        shown = f"{100 * value:.2f}, loss {record['points'][-1]['loss']:.4f}"
    print(
        f"{run.section}: {run.method}, {run.ranks} ranks, rate {run.learning_rate:.4g}, "
        f"seed {run.seed}: {shown}; {record['seconds']:.0f} s; at least {len(work.missing())} left",
        flush=True,
    )


def write(work: Planned, out: Path) -> None:
    records = work.records()
    summaries = summarize(work.plan, records)
    if not summaries:
        return
    results.write(store.document(work.plan, records), out / "accuracy.json")
    text = f"{show.best(summaries)}\n\n{show.rates(summaries)}\n"
    (out / "accuracy.md").write_text(text, encoding="utf-8")
    show.draw(summaries, out / show.FIGURE)
    print(f"\n{text}\nWritten to {out}: accuracy.json, accuracy.md, {show.FIGURE}")


if __name__ == "__main__":
    sys.exit(main())
