"""What training sends, saves, and keeps for backward, in fewer bytes.

Saves checkpoints without loss and as differences, beside zstd and zipnn where these are installed;
encodes frames of every preset with values as floats and in fewer bits; trains three models with
activations kept in 8, 4 and 2 bits, beside none. At most twenty minutes on two cores; with --quick
five.
"""

import argparse
import dataclasses
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from benches.harness import pages, results
from benches.harness.command import progress

from . import activations, files, frames

DOCS = pages.ROOT / "docs"
PUBLISHED = results.FOLDER / "checkpoints.json"


def measure(quick: bool) -> dict[str, Any]:
    """Return all figures."""
    seeds, steps = (1, activations.STEPS // 3) if quick else (activations.SEEDS, activations.STEPS)
    kept = [row for name in activations.TASKS for row in activations.measure(name, seeds, steps)]
    return {
        **results.circumstances(),
        **files.measure(quick),
        "frames": list(map(dataclasses.asdict, frames.measure(progress, quick))),
        "activations": list(map(dataclasses.asdict, kept)),
    }


def blocks(document: Mapping[str, Any]) -> dict[tuple[Path, str], str]:
    """Return the tables, by page and the name of the block."""
    kept = [activations.Row(**each) for each in document["activations"]]
    shown = {
        (DOCS / "checkpoint-files-measured.md", "speeds"): files.speed_table(document["speeds"]),
        (DOCS / "checkpoint-files-measured.md", "sizes"): files.size_table(document["sizes"]),
        (DOCS / "codecs.md", "frames"): frames.table(
            [frames.Row(**each) for each in document["frames"]]
        ),
        (DOCS / "activations-measured.md", "kept"): "\n".join(activations.lines(kept)),
    }
    where = f"From `make checkpoints`: {results.where(document['machine'])}"
    return {place: f"{table}\n\n{where}" for place, table in shown.items()}


def main(given: list[str] | None = None) -> int:
    """Measure, and print the tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="less of everything")
    parser.add_argument("--publish", action="store_true", help="write the tables of the pages, too")
    chosen = parser.parse_args(given)
    document = measure(chosen.quick)
    tables = blocks(document)
    print("\n\n".join(tables.values()))
    if chosen.publish:
        results.write(document, PUBLISHED)
        for (page, name), table in tables.items():
            pages.replace(page, name, table)
    return 0


if __name__ == "__main__":
    sys.exit(main())
