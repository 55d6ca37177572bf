"""Run the tests of a tier, Rust and Python; close with a summary.

    .venv/bin/python scripts/run_tests.py [quick|rest] [rust] [python]

``quick`` is what `make test` runs: Rust at the best SIMD level of this CPU, and of the Python tests
those that are neither marked ``full`` nor left out of a sample of many cases (tests/conftest.py).
``rest`` is all others, with Rust at the levels below. Without either, both run.

Two suites more than there are processors run at a time, or as many as ``JOBS`` says: many tests
wait for processes, and few use more than one processor. Every line of the output begins with the
name of its suite.

All suites run even if an early one fails; the exit status says whether all passed. The last lines
name every test that failed.
``PYTEST_ARGS`` is passed to pytest, which is one suite then.
"""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent

# Ascending; GRADWIRE_SIMD may only lower the level that the CPU has.
LEVELS = {"scalar": ["scalar"], "avx2": ["scalar", "avx2"], "neon": ["scalar", "neon"]}
LEVELS["avx512"] = [*LEVELS["avx2"], "avx512"]

# Files of Rust that count entries and bytes of frames, which `digest` holds equal at every level,
# and one that goes through all levels itself.
BEST_ONLY = {"achieved_ratio", "index_cost", "blocks"}
# Tests of the library that go through all levels themselves; those of laws that need no kernel, and
# of how work is split between threads, which no level changes.
WITHOUT_LEVEL = ("every_level", "levels_and_threads", "fit::tests", "tests::splits")
# What runs together, in a process of its own, the longest first: the tests that start ranks, which
# mostly wait, in two halves; those of the CUDA kernels; those of examples and guides; those that
# start other programs. All others are the last group.
GROUPS = {
    "ranks h-z": ("tests/distributed", "--ignore-glob=*/test_[a-g]*"),
    "kernels": ("tests/csrc", "tests/torch"),
    "examples": ("tests/docs", "tests/examples"),
    "programs": ("tests/benches/harness", "tests/horovod", "tests/trainers"),
    "ranks a-g": ("tests/distributed", "--ignore-glob=*/test_[!a-g]*"),
}
# Threads of torch that wait for each other are not to keep a processor from the other suite.
PATIENT = {"OMP_WAIT_POLICY": "PASSIVE"}

# The closing lines of libtest, "3 passed; 0 failed; 1 ignored", and pytest, "3 passed, 1 skipped".
COUNT = re.compile(r"(\d+) (passed|failed|errors?|ignored|skipped)\b")
CLOSING = re.compile(r"^(test result: |=* ?\d+ [a-z]+.* in [\d.]+s)")
# A failed test in the output of libtest, and in the short summary of pytest.
FAILURE = re.compile(r"^(?:test (\S+)(?: - .*)? \.\.\. FAILED|(?:FAILED|ERROR) (\S.*))$")
KINDS = {"error": "failed", "errors": "failed", "ignored": "skipped"}

PRINTING = threading.Lock()


@dataclass
class Suite:
    """One command of the run, and its result."""

    name: str
    command: list[str]
    environment: dict[str, str] = field(default_factory=dict)
    counts: dict[str, int] = field(
        default_factory=lambda: dict.fromkeys(("passed", "failed", "skipped"), 0)
    )
    failures: list[str] = field(default_factory=list)
    seconds: float = 0.0
    status: int = 0

    def run(self) -> None:
        self._say(f"==> {shlex.join(self.command)}\n")
        began = time.monotonic()
        with subprocess.Popen(
            self.command,
            cwd=ROOT,
            env={**os.environ, **self.environment},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
        ) as process:
            assert process.stdout is not None
            for line in process.stdout:
                self._say(line)
                self._count(line)
        self.status = process.returncode
        self.seconds = time.monotonic() - began

    def _say(self, line: str) -> None:
        with PRINTING:
            print(f"{self.name:<15} | {line}", end="", flush=True)

    def _count(self, line: str) -> None:
        plain = re.sub(r"\x1b\[[\d;]*m", "", line)
        if CLOSING.match(plain):
            for number, kind in COUNT.findall(plain):
                self.counts[KINDS.get(kind, kind)] += int(number)
        if failure := FAILURE.match(plain.rstrip()):
            self.failures.append(failure[1] or failure[2])

    @property
    def passed(self) -> bool:
        """Whether the command succeeded and did run tests: an empty suite proves nothing."""
        return self.status == 0 and self.counts["passed"] > 0


def level() -> str:
    """Return the best SIMD level of this CPU, as the installed extension sees it."""
    question = "import gradwire; print(gradwire.simd_level())"
    plain = {key: value for key, value in os.environ.items() if key != "GRADWIRE_SIMD"}
    return subprocess.check_output([sys.executable, "-c", question], text=True, env=plain).strip()


def rust_suites(tier: str | None) -> list[Suite]:
    """Return the core's tests once per level: the best one is quick, those below are the rest.

    Those of `BEST_ONLY` and `WITHOUT_LEVEL` and the documentation's examples run only at the best
    one, and others have fewer codecs below it. The Python tests cover the bindings: building them
    for ``cargo test`` would test nothing.
    """
    suites = []
    files = {each.stem for each in (ROOT / "rust/core/tests").glob("*.rs")}
    below = ["--lib", *(f"--test={name}" for name in sorted(files - BEST_ONLY))]
    below += ["--", *(f"--skip={name}" for name in WITHOUT_LEVEL)]
    best = level()
    for name in LEVELS[best]:
        if tier is not None and (name == best) != (tier == "quick"):
            continue
        targets = [] if name == best else below
        command = ["cargo", "test", "--locked", "--package", "gradwire-core", *targets]
        suites.append(Suite(f"rust, {name}", command, {"GRADWIRE_SIMD": name}))
    return suites


def build_rust() -> None:
    """Compile the core's tests before any suite begins: the compiler needs all processors."""
    command = ["cargo", "test", "--locked", "--package", "gradwire-core", "--no-run"]
    subprocess.run(command, cwd=ROOT, check=False)  # what fails here fails in the suites, too


def python_suites(tier: str | None) -> list[Suite]:
    """Return the Python tests, in as many processes as there are groups."""
    command = [sys.executable, "-m", "pytest", *([f"--tier={tier}"] if tier else [])]
    if arguments := shlex.split(os.environ.get("PYTEST_ARGS", "")):
        return [Suite("python", [*command, *arguments])]
    named = {word for words in GROUPS.values() for word in words if word.startswith("tests/")}
    others = [f"--ignore={folder}" for folder in sorted(named)]
    suites = []
    for group, chosen in {**GROUPS, "others": ("tests", *others)}.items():
        words = [*command, "-o", f"cache_dir=.pytest_cache/{group}", *chosen]
        suites.append(Suite(f"python, {group}", words, PATIENT))
    return suites


def summarise(suites: list[Suite]) -> None:
    print("\n==> summary")
    for suite in suites:
        verdict = "ok" if suite.passed else "FAILED"
        numbers = ", ".join(f"{count} {kind}" for kind, count in suite.counts.items())
        print(f"    {suite.name:<15} {verdict:<7} {suite.seconds:7.1f} s   {numbers}")
    for suite in suites:
        for name in suite.failures:
            print(f"    failed: {name}")
    total = {kind: sum(suite.counts[kind] for suite in suites) for kind in suites[0].counts}
    print(f"{total['passed']} passed, {total['failed']} failed, {total['skipped']} skipped")


def main(asked: list[str]) -> int:
    tiers = [word for word in asked if word in ("quick", "rest")]
    tier, kinds = (tiers[0] if tiers else None), set(asked).difference(tiers)
    # The longest first.
    suites: list[Suite] = []
    if not kinds or "python" in kinds:
        suites += python_suites(tier)
    if not kinds or "rust" in kinds:
        build_rust()
        suites += reversed(rust_suites(tier))
    with ThreadPoolExecutor(int(os.environ.get("JOBS") or (os.cpu_count() or 1) + 2)) as lanes:
        list(lanes.map(Suite.run, suites))
    summarise(suites)
    return 0 if all(suite.passed for suite in suites) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
