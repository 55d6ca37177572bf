"""Count the instructions per element of kernels and encodes; print them as a Markdown table.

    make bench-instructions ARGS="[--only TEXT] [--results FILE.json] [--into docs/performance.md]"
    make bench-instructions ARGS="--neon [--only TEXT] [--into docs/performance.md]"

Times vary from run to run; counts do not. ``valgrind --tool=callgrind`` counts them at the AVX2
level, the highest that it supports, for one thread and Laplace entries, in the core's example
``instructions``. The table also shows the bytes per element that each case must move, for a float32
tensor too long for the caches, and the same in copies (a copy moves 8 bytes). Given the file of a
recorded `make bench`, it adds the copies measured there and the gap between the two.

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
from typing import Any

from .compare import blocks

BLOCK = "instructions"
NEON_BLOCK = "instructions on NEON"
COPY = 8.0  # bytes per element: read, and written past the cache
LINE = 16  # elements of float32 in a cache line

# Rows of `make bench` that measure the same thing, of 25 M entries on one thread.
MEASURED = {
    "topk": "gradwire topk",
    "topk, low memory": "gradwire topk, low memory",
    "topk, Adam correction": "gradwire adam",
    "sidco": "gradwire sidco",
    "sidco tracking": "gradwire sidco tracking",
    "sidco, 2 stages": "gradwire sidco, 2 stages",
    "dense bf16": "gradwire dense bf16",
    "dense f16": "gradwire dense f16",
}

SPARSE = ("topk", "sidco", "sampled top-k", "gaussian", "trimmed", "random-k")
WITH_RESIDUAL = " with residual"
ELEMENT = {"bfloat16": 2.0, "float16": 2.0, "float64": 8.0}  # bytes, of others than float32
CODE_BITS = {
    "bf16": 16,
    "f16": 16,
    "uniform, 2 bits": 2,
    "uniform, 4 bits": 4,
    "uniform, 8 bits": 8,
    "ternary": 2,
    "sign and mean": 1,
    "two means, columns of 1024": 1,
}


def touched(ratio: float) -> float:
    """Return the bytes per element to read and write every cache line with an entry sent."""
    return COPY * (1 - (1 - ratio) ** LINE)


def bytes_moved(work: str, ratio: float) -> float | None:
    """Return the bytes per element that a case must move, or None if unknown.

    Frames and survivors, 4 to 8 bytes per entry sent, are left out: they stay in the caches.
    """
    element = 4.0
    for dtype, size in ELEMENT.items():
        if work.endswith(f" of {dtype}"):
            work, element = work.removesuffix(f" of {dtype}"), size
    sweep = element + 8.0  # gradient and residual are read, the sum is written
    again = {
        "topk, low memory": 8.0,  # both are read once before, to find what is not finite
        "sidco, 2 stages": 4.0,  # the sum is read again, above the first threshold
        "topk, momentum correction": COPY + touched(ratio),  # as much for the momentum
        "topk, Adam correction": COPY,  # the second moment, of which nothing is patched
    }
    if work == "decode and add":
        return touched(ratio)
    if work.startswith("dense "):
        fed_back = work.endswith(WITH_RESIDUAL)
        bits = CODE_BITS.get(work.removeprefix("dense ").removesuffix(WITH_RESIDUAL))
        return None if bits is None else (sweep if fed_back else element) + bits / 8
    if work.startswith(SPARSE):
        return sweep + again.get(work, 0.0) + touched(ratio)
    return None


def build(cargo: str = "cargo") -> Path:
    """Build the example and return its path."""
    command = f"{cargo} build --release --locked -p gradwire-core --example instructions"
    done = subprocess.run(
        [*command.split(), "--message-format=json-render-diagnostics"],
        cwd=blocks.ROOT,
        stdout=subprocess.PIPE,
        text=True,
    )
    if done.returncode:
        sys.exit("error: the example does not build")
    messages = [json.loads(line) for line in done.stdout.splitlines()]
    found = [m["executable"] for m in messages if m.get("executable")]
    return Path(found[-1])


def count(program: Path, work: str) -> tuple[float, str]:
    """Return the instructions per element of one case, and the SIMD level that it ran at."""
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


def split(name: str) -> tuple[str, float]:
    """Return the name of a case without its ratio, and the ratio."""
    work, comma, ratio = name.rpartition(", ")
    if comma and re.fullmatch(r"[\d.]+", ratio):
        return work, float(ratio)
    return name, 0.001  # dense rows are the same at every ratio


def recorded(document: dict[str, Any], work: str, ratio: float) -> float | None:
    """Return the copies that a recorded run measured for a case."""
    if work == "decode and add":
        for run in document.get("sections", {}).get("receive", []):
            for row in run["rows"]:
                if (run["threads"], row["ratio"], row["frames"]) == (1, ratio, 1):
                    return float(row["copies"]["median"])
        return None
    for outcome in document["outcomes"]:
        case = outcome["case"]
        right = (case["numel"], case["threads"], case["ratio"]) == (25_000_000, 1, ratio)
        if right and case["law"].startswith("student-t"):
            for row in outcome["results"]:
                if row["name"] == MEASURED.get(work):
                    return float(row["encode_copies"]["median"])
    return None


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


def rows(program: Path, only: str, document: dict[str, Any] | None) -> Iterator[list[str]]:
    """Yield the cells of every case as it is counted."""
    kernels, encodes = names(program, only)
    for name in kernels + encodes:
        instructions, level = count(program, name)
        if level != "avx2":
            print(f"warning: {name} ran at the level {level}", file=sys.stderr)
        work, ratio = split(name)
        moved = bytes_moved(work, ratio)
        cells = [name, f"{instructions:.2f}"]
        cells += ["", ""] if moved is None else [f"{moved:.1f}", f"{moved / COPY:.2f}"]
        if document is not None:
            copies = recorded(document, work, ratio)
            gap = "" if copies is None or moved is None else f"{copies - moved / COPY:+.2f}"
            cells += ["" if copies is None else f"{copies:.2f}", gap]
        yield cells


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--only", default="", help="only cases whose name contains this text")
    parser.add_argument("--results", type=Path, help="JSON file written by `make bench`")
    parser.add_argument("--into", type=Path, help="rewrite the table in this file too")
    parser.add_argument("--neon", action="store_true", help="compare kernels on AVX2 and NEON")
    chosen = parser.parse_args()
    document = json.loads(chosen.results.read_text()) if chosen.results else None
    if chosen.neon:
        headings = ["kernel", "AVX2", "NEON", "NEON / AVX2"]
    else:
        headings = ["work", "instructions per element", "bytes per element", "copies by bytes"]
        headings += ["measured", "gap"] if document is not None else []
    lines = [f"| {' | '.join(headings)} |", f"|---{'|---:' * (len(headings) - 1)}|"]
    print("\n".join(lines))
    for cells in rows_on_neon(chosen.only) if chosen.neon else rows(build(), chosen.only, document):
        lines.append(f"| {' | '.join(cells)} |")
        print(lines[-1], flush=True)
    if chosen.into:
        blocks.replace(chosen.into, NEON_BLOCK if chosen.neon else BLOCK, lines)


if __name__ == "__main__":
    main()
