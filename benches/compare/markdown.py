"""Print the headline figures of a recorded run as Markdown, for the README.

python -m benches.compare.markdown benches/results/FILE.json
"""

import argparse
import json
from pathlib import Path
from typing import Any

from .tables import span

HEADINGS = ("25 M float32", "encode", "in copies", "bits an entry", "pays below, fp32", "bf16")


def headline(document: dict[str, Any], law: str, ratio: float) -> list[str]:
    """Return the lines of a table: one thread, 25 M entries, this law and ratio."""
    outcome = next(
        outcome
        for outcome in document["outcomes"]
        if outcome["case"] == {"law": law, "numel": 25_000_000, "ratio": ratio, "threads": 1}
    )
    links = outcome["break_even_bits_per_second"]
    copy = span(outcome["copy"]["median"])
    lines = [
        _row(HEADINGS),
        _row(["---", *["---:"] * 5]),
        _row(["plain copy", copy, "1", *[""] * 3]),
    ]
    for result in outcome["results"]:
        if (name := result["name"]) not in links:
            continue
        bits = 8 * result["nbytes"]["median"] / max(1, result["count"]["median"])
        cells = [span(result["encode"]["median"]), f"{result['encode_copies']['median']:.2g}"]
        speeds = [_gbit(links[name][kind]) for kind in ("fp32", "bf16")]
        lines.append(_row([name, *cells, f"{bits:.1f}", *speeds]))
    return lines


def _row(cells: Any) -> str:
    return f"| {' | '.join(cells)} |"


def _gbit(speed: float | str | None) -> str:
    if isinstance(speed, str):
        return speed
    return "never" if speed is None else f"{speed / 1e9:.3g} Gbit/s"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("file", type=Path)
    parser.add_argument("--law", default="student-t(3)")
    parser.add_argument("--ratio", type=float, default=0.001)
    chosen = parser.parse_args()
    document = json.loads(chosen.file.read_text())
    print("\n".join(headline(document, chosen.law, chosen.ratio)))
    machine = document["machine"]
    print(
        f"\n{machine['processor']}, one thread, SIMD level {machine['simd']}, {document['date']}."
    )


if __name__ == "__main__":
    main()
