"""Run the tests of a tier, Rust and Python; close with a summary.

    .venv/bin/python scripts/run_tests.py [quick|rest|night] [rust] [python]

``quick`` is what `make test` runs: Rust at the best SIMD level of this CPU, and of the Python tests
those that are neither marked ``full`` nor left out of a sample of many cases (tests/conftest.py).
``rest`` is what `make test-rest` runs: all Python tests but those marked ``night``, and of Rust, at
the levels below, what depends on the level most. ``night`` is the rest of both. Without a tier,
all run.

Three suites more than there are processors run at a time, or as many as ``JOBS`` says, and beside
them the tests marked ``waits``, which take no processor. Every line of the output begins with the
name of its suite.

All suites run even if an early one fails; the exit status says whether all passed. The last lines
name the tests that took longest, and every test that failed. All durations are written to
``.cache/test-times.jsonl``, one object a line: a test, its phase and seconds. Of Rust, libtest only
says how long a file took.
``PYTEST_ARGS`` is passed to pytest, which is one suite then.
"""

from __future__ import annotations

import json
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

TIERS = ("quick", "rest", "night")
# What a level below the best one runs in `rest`: whole encodes and golden frames. Tests of kernels
# go through all levels themselves, in `quick`.
OF_LEVELS = {"digest", "golden"}
# Files of Rust that count entries and bytes of frames, which `digest` holds equal at every level,
# and one that goes through all levels itself.
BEST_ONLY = {"achieved_ratio", "index_cost", "blocks"}
# Tests of the library that go through all levels themselves; those of laws that need no kernel, and
# of how work is split between threads, which no level changes.
WITHOUT_LEVEL = ("every_level", "levels_and_threads", "fit::tests")
# What runs together, in a process of its own, the longest first: the tests that start ranks, in two
# halves, which begin at once because each waits most of the time; those of the CUDA kernels; those
# of examples and guides; those that start other programs. All others are the last group. None of
# them runs the tests marked `waits`.
GROUPS = {
    "ranks h-z": ("tests/distributed", "--ignore-glob=*/test_[a-g]*"),
    "ranks a-g": ("tests/distributed", "--ignore-glob=*/test_[!a-g]*"),
    "kernels": ("tests/csrc", "tests/torch"),
    "examples": ("tests/docs", "tests/examples"),
    "programs": ("tests/benches/harness", "tests/horovod", "tests/trainers"),
}
WAIT = "python, waits"
WAITING = ("tests/distributed", "tests/horovod")
"""Folders with tests marked `waits`."""
NIGHT = ("ranks h-z", "ranks a-g")
"""Groups with tests marked `night`."""
# Threads of torch that wait for each other are not to keep a processor from the other suite.
PATIENT = {"OMP_WAIT_POLICY": "PASSIVE"}

TIMES = ROOT / ".cache" / "test-times.jsonl"
SHOWN = 10
"""So many of the dearest tests are in the summary."""

# The closing lines of libtest, "3 passed; 0 failed; 1 ignored", and pytest, "3 passed, 1 skipped".
COUNT = re.compile(r"(\d+) (passed|failed|errors?|ignored|skipped)\b")
CLOSING = re.compile(r"^(test result: |=* ?\d+ [a-z]+.* in [\d.]+s)")
FINISHED = re.compile(r"finished in ([\d.]+)s")
# The line of cargo before the output of a file of tests: "Running unittests src/lib.rs (target/…)".
RUNNING = re.compile(r"^ +(Running|Doc-tests) (.+?)(?: \(|$)")
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
    running: str = ""

    def run(self) -> None:
        self._say(f"==> {shlex.join(self.command)}\n")
        began = time.monotonic()
        with subprocess.Popen(
            self.command,
            cwd=ROOT,
            env={**os.environ, **self.environment, "GRADWIRE_TEST_TIMES": str(TIMES)},
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
            if self.running and (took := FINISHED.search(plain)):
                entry = {"test": f"{self.name}: {self.running}", "seconds": float(took[1])}
                with TIMES.open("a", encoding="utf-8") as file:
                    file.write(json.dumps(entry) + "\n")
        elif running := RUNNING.match(plain):
            self.running = running[2].rstrip()
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
    """Return the core's tests once per level.

    The best level is quick and runs all. Those below run `OF_LEVELS` in the rest, and by night
    what may depend on the level: not `BEST_ONLY`, `WITHOUT_LEVEL` and the documentation's
    examples; tests of many codecs take fewer there. The Python tests cover the bindings: building
    them for ``cargo test`` would test nothing.
    """
    files = {path.stem for path in (ROOT / "rust/core/tests").glob("*.rs")}
    by_night = files - BEST_ONLY - (OF_LEVELS if tier else set())
    skipped = ["--", *(f"--skip={name}" for name in WITHOUT_LEVEL)]
    targets = {
        "quick": [],
        "rest": [f"--test={name}" for name in sorted(OF_LEVELS)],
        "night": ["--lib", *(f"--test={name}" for name in sorted(by_night)), *skipped],
    }
    suites = []
    best = level()
    for name in LEVELS[best]:
        if tier is not None and (name == best) != (tier == "quick"):
            continue
        chosen = "quick" if name == best else tier or "night"
        command = ["cargo", "test", "--locked", "--package", "gradwire-core", *targets[chosen]]
        suites.append(Suite(f"rust, {name}", command, {"GRADWIRE_SIMD": name}))
    return suites


def build(python: bool, rust: bool) -> None:
    """Compile the core's tests and the emulated kernels before any suite begins.

    Compilers need all processors, and a test that compiles keeps others in its suite waiting.
    """
    commands = []
    if rust:
        commands.append(["cargo", "test", "--locked", "--package", "gradwire-core", "--no-run"])
    if python:
        commands.append([sys.executable, "-m", "tests.csrc.emulated.build"])
    started = [subprocess.Popen(command, cwd=ROOT) for command in commands]
    for process in started:
        process.wait()  # what fails here fails in the suites, too


def python_suites(tier: str | None) -> list[Suite]:
    """Return the Python tests in as many processes as there are groups, and one of those that wait.

    With ``PYTEST_ARGS``, return one suite of all that they select.
    """
    command = [sys.executable, "-m", "pytest", *([f"--tier={tier}"] if tier else [])]
    if arguments := shlex.split(os.environ.get("PYTEST_ARGS", "")):
        return [Suite("python", [*command, *arguments])]
    named = {word for words in GROUPS.values() for word in words if word.startswith("tests/")}
    others = [f"--ignore={folder}" for folder in sorted(named)]
    groups = {**GROUPS, "others": ("tests", *others)}
    if tier == "night":
        chosen = {f"python, {name}": ("not slow", *groups[name]) for name in NIGHT}
    else:
        chosen = {WAIT: ("waits and not slow", *WAITING)}
        for name, words in groups.items():
            chosen[f"python, {name}"] = ("not waits and not slow", *words)
    suites = []
    for name, words in chosen.items():
        place = f"cache_dir=.pytest_cache/{name}"
        suites.append(Suite(name, [*command, "-o", place, "-m", *words], PATIENT))
    return suites


def dearest() -> list[tuple[str, float]]:
    """Return the tests that took longest with their seconds, setup and teardown included."""
    total: dict[str, float] = {}
    for line in TIMES.read_text(encoding="utf-8").splitlines():
        entry = json.loads(line)
        total[entry["test"]] = total.get(entry["test"], 0.0) + entry["seconds"]
    return sorted(total.items(), key=lambda item: -item[1])[:SHOWN]


def summarise(suites: list[Suite]) -> None:
    print("\n==> summary")
    for suite in suites:
        verdict = "ok" if suite.passed else "FAILED"
        numbers = ", ".join(f"{count} {kind}" for kind, count in suite.counts.items())
        print(f"    {suite.name:<15} {verdict:<7} {suite.seconds:7.1f} s   {numbers}")
    for name, seconds in dearest():
        print(f"    {seconds:7.1f} s   {name}")
    for suite in suites:
        for name in suite.failures:
            print(f"    failed: {name}")
    total = {kind: sum(suite.counts[kind] for suite in suites) for kind in suites[0].counts}
    print(f"{total['passed']} passed, {total['failed']} failed, {total['skipped']} skipped")


def main(asked: list[str]) -> int:
    tiers = [word for word in asked if word in TIERS]
    tier, kinds = (tiers[0] if tiers else None), set(asked).difference(tiers)
    python, rust = (not kinds or kind in kinds for kind in ("python", "rust"))
    TIMES.parent.mkdir(exist_ok=True)
    TIMES.write_text("")
    build(python, rust)
    # The longest first.
    suites = python_suites(tier) if python else []
    suites += reversed(rust_suites(tier)) if rust else []
    waiting = sum(suite.name == WAIT for suite in suites)
    lanes = int(os.environ.get("JOBS") or (os.cpu_count() or 1) + 3 + waiting)
    with ThreadPoolExecutor(lanes) as pool:
        list(pool.map(Suite.run, suites))
    summarise(suites)
    return 0 if all(suite.passed for suite in suites) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
