"""Write the headline figures of a recorded run as Markdown, for the README.

python -m benches.compare.markdown benches/results/FILE.json [--into README.md]
"""

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from . import blocks, plan, record
from .break_even import gbit
from .tables import span

BLOCK = "headline"
HEADINGS = ("", "encode, with residual", "in copies", "bits an entry", "pays below, fp32", "bf16")
README_RATIO = 0.01

# What the README calls whom, in its order; the rest is in the file.
SHOWN = {
    "gradwire topk": "**gradwire topk** (exact)",
    "gradwire topk bf16": "**gradwire topk**, bf16 values",
    "gradwire sidco": "**gradwire sidco**",
    "DGC sampling": "DGC's sampling, in torch",
    "torch PowerSGD, rank 4": "torch's PowerSGD hook, rank 4",
    "numpy.partition": "`numpy.partition`",
    "SIDCo in torch": "SIDCo, in torch",
    "torch.kthvalue": "`torch.kthvalue`",
    "torch.topk": "`torch.topk`",
}


def outcome(document: dict[str, Any], law: str, ratio: float, threads: int = 1) -> dict[str, Any]:
    """Return the outcome of 25 M entries, this law and ratio, so many threads."""
    wanted = {"law": law, "numel": plan.HEADLINE, "ratio": ratio, "threads": threads}
    return next(dict(each) for each in document["outcomes"] if each["case"] == wanted)


def table(chosen: dict[str, Any], names: dict[str, str]) -> list[str]:
    """Return the lines of a table of these contestants, as far as the run has them."""
    links = chosen["break_even_bits_per_second"]
    results = {result["name"]: result for result in chosen["results"]}
    lines = [
        _row(HEADINGS),
        _row(["---", *["---:"] * (len(HEADINGS) - 1)]),
        _row(["plain copy", span(chosen["copy"]["median"]), "1", "", "", ""]),
    ]
    for name, title in names.items():
        if name not in links or name not in results:
            continue
        result = results[name]
        bits = 8 * result["nbytes"]["median"] / max(1, result["count"]["median"])
        cells = [span(result["encode"]["median"]), f"{result['encode_copies']['median']:.2g}"]
        speeds = [gbit(links[name][kind]) for kind in ("fp32", "bf16")]
        lines.append(_row([title, *cells, f"{bits:.3g}", *speeds]))
    return lines


def headline(document: dict[str, Any], path: str) -> list[str]:
    """Return what the README says of a run: the table, and where it comes from."""
    shown = table(outcome(document, plan.HEADLINE_LAW, README_RATIO), SHOWN)
    machine = document["machine"]
    source = f"{machine['processor']}, SIMD level {machine['simd']}, {document['date'][:10]}"
    return [*shown, "", f"By `make bench` ({source}); the whole run is [here]({path})."]


def _row(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("file", type=Path)
    parser.add_argument("--into", type=Path, help="rewrite the table in this README")
    parser.add_argument("--law", help="instead: everybody, under this law")
    parser.add_argument("--ratio", type=float, default=0.001, help="with --law, this ratio")
    parser.add_argument("--threads", type=int, default=1, help="with --law, so many threads")
    chosen = parser.parse_args()
    document = record.read(chosen.file)
    if chosen.law:
        found = outcome(document, chosen.law, chosen.ratio, chosen.threads)
        print(
            "\n".join(table(found, {result["name"]: result["name"] for result in found["results"]}))
        )
        return
    lines = headline(document, chosen.file.resolve().relative_to(blocks.ROOT).as_posix())
    if chosen.into:
        blocks.replace(chosen.into, BLOCK, lines)
    else:
        print("\n".join(lines))


if __name__ == "__main__":
    main()
