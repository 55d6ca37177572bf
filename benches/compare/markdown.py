"""Write the figures of recorded runs as Markdown, for the README.

python -m benches.compare.markdown benches/results/FILE.json [--into README.md]
"""

import argparse
from pathlib import Path
from typing import Any

from . import blocks, pages, plan, record
from .pages import span

README_RATIO = 0.01

# Labels in the README, in its order; the other contestants are only in the files.
ENCODERS = {
    "gradwire adam": "**gradwire adam**, Adam's step included",
    "gradwire topk": "**gradwire topk** (exact)",
    "gradwire sidco": "**gradwire sidco**",
    "DGC sampling": "DGC's sampling, in torch",
    "torch PowerSGD, rank 4": "torch's PowerSGD hook, rank 4",
    "torch.topk": "`torch.topk`",
}


def outcome(document: dict[str, Any], law: str, ratio: float, threads: int = 1) -> dict[str, Any]:
    """Return the outcome for 25 M entries, this distribution, ratio and number of threads."""
    wanted = {"law": law, "numel": plan.HEADLINE, "ratio": ratio, "threads": threads}
    return next(dict(each) for each in document["outcomes"] if each["case"] == wanted)


def table(chosen: dict[str, Any], names: dict[str, str]) -> list[str]:
    """Return the lines of a table of those of these contestants that the run has."""
    results = {result["name"]: result for result in chosen["results"]}
    rows = [["plain copy", "", span(chosen["copy"]["median"]), "1"]]
    for name, title in names.items():
        if name in results:
            result = results[name]
            copies = result["encode_copies"]["median"]
            times = [span(result["encode"]["median"]), f"{copies:.{0 if copies >= 10 else 1}f}"]
            rows.append([title, f"{result['nbytes']['median'] / 1e6:.3g}", *times])
    return pages.table(["", "MB per step", "encode", "in copies"], rows)


def page(document: dict[str, Any], path: str) -> dict[str, list[str]]:
    """Return the lines of every block of the README."""
    lines = table(outcome(document, plan.HEADLINE_LAW, README_RATIO), ENCODERS)
    return {"encode": [*lines, "", _source(document, path)]}


def _source(document: dict[str, Any], path: str) -> str:
    machine = document["machine"]
    where = f"{machine['processor']}, SIMD level {machine['simd']}, {document['date'][:10]}"
    return f"By `make bench` ({where}; [all figures]({path}))."


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("file", type=Path)
    parser.add_argument("--into", type=Path, help="rewrite the tables in this README")
    parser.add_argument("--law", help="print all encodes for this distribution instead")
    parser.add_argument("--ratio", type=float, default=0.001, help="ratio for --law")
    parser.add_argument("--threads", type=int, default=1, help="number of threads for --law")
    chosen = parser.parse_args()
    document = record.read(chosen.file)
    if chosen.law:
        found = outcome(document, chosen.law, chosen.ratio, chosen.threads)
        names = {result["name"]: result["name"] for result in found["results"]}
        print("\n".join(table(found, names)))
        return
    path = chosen.file.resolve().relative_to(blocks.ROOT).as_posix()
    for name, lines in page(document, path).items():
        if chosen.into:
            blocks.replace(chosen.into, name, lines)
        else:
            print("\n".join([*lines, ""]))


if __name__ == "__main__":
    main()
