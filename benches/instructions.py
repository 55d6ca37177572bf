"""Count the instructions per element of kernels and encodes; print them as a Markdown table.

    make bench-instructions ARGS="[--only TEXT]"

Times vary from run to run; counts do not. ``valgrind --tool=callgrind`` counts them at the AVX2
level, the highest that it supports, for one thread and Laplace entries, in the core's example
``instructions``.
"""

import argparse
import json
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from .harness import pages


def build() -> Path:
    """Build the example and return its path."""
    command = "cargo build --release --locked -p gradwire-core --example instructions"
    done = subprocess.run(
        [*command.split(), "--message-format=json-render-diagnostics"],
        cwd=pages.ROOT,
        stdout=subprocess.PIPE,
        text=True,
    )
    if done.returncode:
        sys.exit("error: the example does not build")
    messages = [json.loads(line) for line in done.stdout.splitlines()]
    found = [m["executable"] for m in messages if m.get("executable")]
    return Path(found[-1])


def count(program: Path, work: str) -> tuple[float, str]:
    command = ["valgrind", "--tool=callgrind", "--callgrind-out-file=/dev/null"]
    command += ["--collect-atstart=no", "--toggle-collect=*::measured*", str(program), work]
    try:
        done = subprocess.run(command, capture_output=True, text=True)
    except FileNotFoundError:
        sys.exit("error: this needs valgrind, which is not installed")
    collected = re.search(r"Collected : (\d+)", done.stderr)
    if done.returncode or collected is None:
        sys.exit(f"error: valgrind failed at {work!r}:\n{done.stderr}")
    elements, level = done.stdout.split()
    return int(collected[1]) / int(elements), level


def rows(only: str) -> Iterator[list[str]]:
    """Yield the cells of every kernel and encode whose name contains a text, as it is counted."""
    program = build()
    listed = subprocess.run([program], capture_output=True, text=True, check=True)
    for name in (line for line in listed.stdout.splitlines() if line and only in line):
        instructions, level = count(program, name)
        if level != "avx2":
            print(f"warning: {name} ran at the level {level}", file=sys.stderr)
        yield [name, f"{instructions:.2f}"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--only", default="", help="only cases whose name contains this text")
    chosen = parser.parse_args()
    headings = ["work", "instructions per element"]
    print(f"| {' | '.join(headings)} |\n|---|---:|")
    for cells in rows(chosen.only):
        print(f"| {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main()
