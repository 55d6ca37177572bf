"""Train to the end with and without compression, each method at its best learning rate.

A run that is finished is kept in the folder of the results: the same command goes on where it was
interrupted. Runs of the published results with the same settings are not made again. All of them
take about five hours on two cores that do nothing else; with --quick fifteen minutes.
"""

import argparse
import sys
import time
from pathlib import Path

from benches.harness.machine import cores
from benches.harness.signals import terminate_as_interrupt

from . import document, show, store
from .plan import SECTIONS, Plan, Run
from .pool import Pool, WorkerError
from .store import Planned, Record, Store
from .summary import summarize
from .tasks import fashion_data

STEP_SECONDS = {
    ("text", 2): 0.027,
    ("text", 8): 0.035,
    ("fashion", 2): 0.042,
    ("fashion", 8): 0.060,
    ("clicks", 2): 0.008,
    ("noise", 2): 0.017,
    ("control", 2): 0.017,
}
"""Of a run on one core, by task and ranks, until runs of this machine are there."""


def arguments(given: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="make accuracy ARGS=...",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "--quick", action="store_true", help="a quarter of the steps, two rates, one seed, 2 ranks"
    )
    parser.add_argument(
        "--only",
        type=_sections,
        default=tuple(SECTIONS),
        metavar="NAME,...",
        help=f"sections to run, of {', '.join(SECTIONS)} (default: all)",
    )
    parser.add_argument("--seeds", type=int, default=3, help="runs of each result (default: 3)")
    parser.add_argument(
        "--jobs", type=int, default=cores(), help="processes of one thread each (default: cores)"
    )
    parser.add_argument(
        "--data", type=Path, metavar="DIR", help="folder with the four files of Fashion-MNIST"
    )
    parser.add_argument(
        "--out",
        type=Path,
        default=Path("accuracy-results"),
        metavar="DIR",
        help="folder of runs, tables and figure (default: %(default)s)",
    )
    chosen = parser.parse_args(given)
    for name in ("seeds", "jobs"):
        if getattr(chosen, name) < 1:
            parser.error(f"--{name} must be at least 1")
    return chosen


def _sections(text: str) -> tuple[str, ...]:
    names = [part.strip() for part in text.split(",") if part.strip()]
    if unknown := [name for name in names if name not in SECTIONS]:
        raise argparse.ArgumentTypeError(
            f"unknown section {', '.join(unknown)}; choose from {', '.join(SECTIONS)}"
        )
    return tuple(name for name in SECTIONS if name in names)


class Progress:
    """A line for every finished run, with the time that is left."""

    def __init__(self, plan: Plan, kept: Store, jobs: int) -> None:
        self._plan, self._kept, self._jobs = plan, kept, jobs
        self._began = time.monotonic()
        self._seconds = 0.0

    def tell(self, run: Run, record: Record) -> None:
        """Print the line of a run."""
        self._seconds += record["seconds"]
        if record["diverged"]:
            shown = "diverged"
        else:
            value = SECTIONS[run.section].value(record["points"])
            shown = f"{100 * value:.2f}, loss {record['points'][-1]['loss']:.4f}"
        print(
            f"{run.section}: {run.method}, {run.ranks} ranks, rate {run.learning_rate:.4g}, "
            f"seed {run.seed}: {shown}; {self.left()} left",
            flush=True,
        )

    def left(self) -> str:
        """Return the estimated time that is left."""
        records = self._kept.of(self._plan)
        seconds = 0.0
        for (task, ranks), count in self._plan.left(store.scores(records)).items():
            measured = [
                record["seconds"] / record["key"]["steps"]
                for record in records.values()
                if (record["key"]["task"], record["key"]["ranks"]) == (task, ranks)
            ]
            section = next(each for each in SECTIONS.values() if each.task == task)
            step = sum(measured) / len(measured) if measured else STEP_SECONDS[task, ranks]
            seconds += count * step * self._plan.steps(section.name)
        # Other programs slow the runs down: by how much, the runs so far tell.
        slower = 1.0
        if self._seconds:
            slower = max(1.0, (time.monotonic() - self._began) * self._jobs / self._seconds)
        minutes = round(seconds * slower / self._jobs / 60)
        return f"{minutes // 60} h {minutes % 60:02d} min" if minutes >= 60 else f"{minutes} min"


def main() -> int:
    chosen = arguments()
    plan = Plan(chosen.only, chosen.seeds, chosen.quick)
    try:
        with terminate_as_interrupt():
            return run(plan, chosen)
    except (WorkerError, fashion_data.MissingDataError, OSError) as error:
        print(f"make accuracy: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print(
            f"make accuracy: interrupted; finished runs are in {chosen.out}, and the same command "
            "goes on from there",
            file=sys.stderr,
        )
        return 130


def run(plan: Plan, chosen: argparse.Namespace) -> int:
    """Make the runs that are missing, and write what they show."""
    chosen.out.mkdir(parents=True, exist_ok=True)
    kept = Store(chosen.out, document.read(document.PUBLISHED)["runs"])
    before = len(kept.of(plan))
    if any(SECTIONS[name].task == "fashion" for name in plan.sections):
        fashion_data.folder(chosen.data)  # before anything else: it may have to be fetched
    progress = Progress(plan, kept, chosen.jobs)
    print(f"{before} runs are there already; about {progress.left()} left", flush=True)
    try:
        if plan.missing(store.scores(kept.of(plan))):
            with Pool(chosen.jobs, chosen.data) as pool:
                pool.make(Planned(plan, kept), progress.tell)
    finally:
        write(plan, kept, chosen.out)
    return 0


def write(plan: Plan, kept: Store, out: Path) -> None:
    """Write the results so far into the folder, and print them."""
    found = document.document(plan, kept.of(plan))
    summaries = summarize(plan, kept.of(plan))
    if not summaries:
        return
    from .picture import draw

    document.write(found, out / "accuracy.json")
    lines = [*show.best(summaries), "", *show.rates(summaries)]
    (out / "accuracy.md").write_text("\n".join([*lines, ""]), encoding="utf-8")
    draw(summaries, out / show.FIGURE)
    print("\n".join(["", *lines, ""]))
    print(f"Written to {out}: accuracy.json, accuracy.md, {show.FIGURE}")


if __name__ == "__main__":
    sys.exit(main())
