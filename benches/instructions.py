"""Count the instructions per element of kernels and encodes; print them as a Markdown table.

    make bench-instructions ARGS="[--only TEXT] [--into docs/performance.md]"
    make bench-instructions ARGS="--neon [--only TEXT] [--into docs/performance.md]"

Times vary from run to run; counts do not. ``valgrind --tool=callgrind`` counts them at the AVX2
level, the highest that it supports, for one thread and Laplace entries, in the core's example
``instructions``.

With ``--neon`` the table is of kernels alone, with counts on NEON beside those at AVX2: the example
is built for AArch64 (``scripts/neon.sh``) and run by an emulator that tells of every instruction.
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from .harness import pages

BLOCK = "instructions"
NEON_BLOCK = "instructions on NEON"


def build(cargo: str = "cargo") -> Path:
    """Build the example and return its path."""
    command = f"{cargo} build --release --locked -p gradwire-core --example instructions"
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


def emulated(program: Path, work: str, times: int) -> tuple[int, int]:
    """Return the instructions of a whole run with so many rounds of a case, and its elements."""
    # One instruction per block of translated code, and a line for each block that is run.
    command = ["qemu-aarch64", "-singlestep", "-d", "exec,nochain", str(program), work, str(times)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as run:
        assert run.stdout is not None
        assert run.stderr is not None
        executed = sum(line.startswith(b"Trace ") for line in run.stderr)
        printed = run.stdout.read().split()
    if run.returncode or len(printed) != 2 or printed[1] != b"neon":
        sys.exit(f"error: the emulator failed at {work!r}")
    return executed, int(printed[0])


def count_neon(program: Path, work: str) -> float:
    """Return the instructions per element of one case on NEON."""
    (one, elements), (more, _) = emulated(program, work, 1), emulated(program, work, 3)
    return (more - one) / 2 / elements


def names(program: Path, only: str) -> tuple[list[str], list[str]]:
    """Return the kernels and the encodes whose names contain a text."""
    listed = subprocess.run([program], capture_output=True, text=True, check=True)
    kernels, _, encodes = listed.stdout.partition("\n\n")
    wanted = [[name for name in part.splitlines() if only in name] for part in (kernels, encodes)]
    return wanted[0], wanted[1]


def rows_on_neon(only: str) -> Iterator[list[str]]:
    """Yield the cells of every kernel, counted at the AVX2 level and on NEON."""
    program, other = build(), build("scripts/neon.sh")
    for name in names(program, only)[0]:
        avx2, neon = count(program, name)[0], count_neon(other, name)
        yield [name, f"{avx2:.2f}", f"{neon:.2f}", f"{neon / avx2:.2f}"]


def rows(only: str) -> Iterator[list[str]]:
    """Yield the cells of every case as it is counted."""
    program = build()
    kernels, encodes = names(program, only)
    for name in kernels + encodes:
        instructions, level = count(program, name)
        if level != "avx2":
            print(f"warning: {name} ran at the level {level}", file=sys.stderr)
        yield [name, f"{instructions:.2f}"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--only", default="", help="only cases whose name contains this text")
    parser.add_argument("--into", type=Path, help="rewrite the table in this file too")
    parser.add_argument("--neon", action="store_true", help="compare kernels on AVX2 and NEON")
    chosen = parser.parse_args()
    headings = ["work", "instructions per element"]
    if chosen.neon:
        headings = ["kernel", "AVX2", "NEON", "NEON / AVX2"]
    lines = [f"| {' | '.join(headings)} |", f"|---{'|---:' * (len(headings) - 1)}|"]
    print("\n".join(lines))
    for cells in rows_on_neon(chosen.only) if chosen.neon else rows(chosen.only):
        lines.append(f"| {' | '.join(cells)} |")
        print(lines[-1], flush=True)
    if chosen.into:
        block = NEON_BLOCK if chosen.neon else BLOCK
        pages.replace(chosen.into, block, "\n".join(lines))


if __name__ == "__main__":
    main()
