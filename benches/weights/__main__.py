"""Weights and checkpoints in fewer bits: what they take, and what they keep.

``weights`` packs three models by the nearest codes with every fit and three blocks, and times rows
through packed layers, packing and files. ``quantize`` packs five models by calibration and budgets.
``checkpoints`` saves checkpoints without loss and as differences, and makes patches between
versions, beside zstd and zipnn. Models are trained once and kept. About an hour on two cores; with
--quick ten minutes.
"""

import multiprocessing
import os
import sys
from argparse import Namespace
from pathlib import Path
from typing import Any

from benches.accuracy.tasks import fashion_data
from benches.harness import results
from benches.harness.command import command_line, conduct, progress

from . import deltas, files, kernel, losses, models, show
from .models import GRU, MIXTURE, TEXT, WIDE, Model

PARTS = (*losses.KINDS, "checkpoints")


def arguments(given: list[str] | None) -> Namespace:
    parser = command_line("make weights ARGS=...", __doc__)
    # fmt: off
    parser.add_argument("--quick", action="store_true", help="one model, and less of everything")
    parser.add_argument("--only", nargs="+", choices=PARTS, default=PARTS, metavar="PART",
                        help=f"of {', '.join(PARTS)}")
    parser.add_argument("--jobs", type=int, default=results.cores(),
                        help="processes of one thread each (default: cores)")
    parser.add_argument("--data", type=Path, metavar="DIR",
                        help="folder with the four files of Fashion-MNIST")
    parser.add_argument("--out", type=Path, default=Path("weights-results"), metavar="DIR",
                        help="folder of data, tables and pictures (default: %(default)s)")
    parser.add_argument("--publish", action="store_true",
                        help="also write the pages, and the data into benches/results")
    # fmt: on
    chosen = parser.parse_args(given)
    if chosen.jobs < 1:
        parser.error("--jobs must be at least 1")
    if chosen.publish and chosen.quick:
        parser.error("--publish writes a whole run: leave out --quick")
    return chosen


def measure(part: str, chosen: Namespace) -> dict[str, Any]:
    """Return the figures of a part, with day, machine and versions."""
    if part == "checkpoints":
        found = files.measure(chosen.quick, progress) | deltas.measure(chosen.quick, progress)
    else:
        found = {"rows": packed(part, chosen)}
        if part == "weights":
            found["kernel"] = kernel.measure(chosen.quick, progress)
    progress("")
    return {**results.circumstances(), **found}


def packed(part: str, chosen: Namespace) -> list[dict[str, Any]]:
    """Return how models read when they are packed, after training those that are not kept."""
    named: list[Model] = [TEXT]
    if not chosen.quick:
        image = models.images(chosen.data)
        named += [GRU, image] if part == "weights" else [WIDE, GRU, MIXTURE, image]
    settings = list(losses.settings(part, quick=chosen.quick))
    orders = [(model, setting, chosen.data) for model in named for setting in settings]
    # Set before the processes import numpy and torch, which read it once.
    os.environ.update(OMP_NUM_THREADS="1", OPENBLAS_NUM_THREADS="1", MKL_NUM_THREADS="1")
    context, rows = multiprocessing.get_context("spawn"), []
    with context.Pool(chosen.jobs, losses.begin) as pool:
        longest = sorted(named, key=lambda model: -model.seconds)
        pool.starmap(losses.train, [(model, chosen.data) for model in longest], chunksize=1)
        for order, row in zip(orders, pool.imap(losses.row, orders), strict=True):
            print(f"{order[0].name}: {order[1]}: loss {row['loss']:.4f}", flush=True)
            rows.append(row)
    return rows


def make(chosen: Namespace) -> int:
    chosen.out.mkdir(parents=True, exist_ok=True)
    for part in chosen.only:
        document = measure(part, chosen)
        results.write(document, chosen.out / f"{part}.json")
        text = "\n\n".join(show.blocks(document, part).values())
        (chosen.out / f"{part}.md").write_text(f"{text}\n", encoding="utf-8")
        print(f"\n{text}\n\nWritten to {chosen.out}: {part}.json, {part}.md")
        if part in losses.KINDS:
            show.draw(document, part, chosen.out / f"{part}.svg")
        if chosen.publish:
            show.publish(document, part)
    return 0


def main(given: list[str] | None = None) -> int:
    chosen = arguments(given)
    errors = (fashion_data.MissingDataError,)
    return conduct("make weights", lambda: make(chosen), errors, "trained models are kept")


if __name__ == "__main__":
    sys.exit(main())
