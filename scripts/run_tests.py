"""Run every test: Rust at each SIMD level of this CPU, then Python; close with a summary.

    .venv/bin/python scripts/run_tests.py [rust] [python]

All suites run even if an early one fails; the exit status says whether all passed.
``PYTEST_ARGS`` is passed to pytest.
"""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent

# Ascending; GRADWIRE_SIMD may only lower the level that the CPU has.
LEVELS = {"scalar": ["scalar"], "avx2": ["scalar", "avx2"], "neon": ["scalar", "neon"]}
LEVELS["avx512"] = [*LEVELS["avx2"], "avx512"]

# The closing lines of libtest, "3 passed; 0 failed; 1 ignored", and pytest, "3 passed, 1 skipped".
COUNT = re.compile(r"(\d+) (passed|failed|errors?|ignored|skipped)\b")
CLOSING = re.compile(r"^(test result: |=* ?\d+ [a-z]+.* in [\d.]+s)")
KINDS = {"error": "failed", "errors": "failed", "ignored": "skipped"}


@dataclass
class Suite:
    """One command of the run, and its result."""

    name: str
    command: list[str]
    environment: dict[str, str] = field(default_factory=dict)
    counts: dict[str, int] = field(
        default_factory=lambda: dict.fromkeys(("passed", "failed", "skipped"), 0)
    )
    seconds: float = 0.0
    status: int = 0

    def run(self) -> None:
        print(f"\n==> {self.name}: {shlex.join(self.command)}", flush=True)
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
                print(line, end="", flush=True)
                self._count(line)
        self.status = process.returncode
        self.seconds = time.monotonic() - began

    def _count(self, line: str) -> None:
        plain = re.sub(r"\x1b\[[\d;]*m", "", line)
        if CLOSING.match(plain):
            for number, kind in COUNT.findall(plain):
                self.counts[KINDS.get(kind, kind)] += int(number)

    @property
    def passed(self) -> bool:
        """Whether the command succeeded and did run tests: an empty suite proves nothing."""
        return self.status == 0 and self.counts["passed"] > 0


def level() -> str:
    """Return the best SIMD level of this CPU, as the installed extension sees it."""
    question = "import gradwire; print(gradwire.simd_level())"
    plain = {key: value for key, value in os.environ.items() if key != "GRADWIRE_SIMD"}
    return subprocess.check_output([sys.executable, "-c", question], text=True, env=plain).strip()


def rust_suites() -> list[Suite]:
    """Return the core's tests once per level; the documentation's examples only at the best one.

    The Python tests cover the bindings: building them for ``cargo test`` would test nothing.
    """
    suites = []
    for name in LEVELS[level()]:
        targets = [] if name == level() else ["--lib", "--tests"]
        command = ["cargo", "test", "--locked", "--package", "gradwire-core", *targets]
        suites.append(Suite(f"rust, {name}", command, {"GRADWIRE_SIMD": name}))
    return suites


def python_suite() -> Suite:
    arguments = shlex.split(os.environ.get("PYTEST_ARGS", ""))
    return Suite("python", [sys.executable, "-m", "pytest", *arguments])


def summarise(suites: list[Suite]) -> None:
    print("\n==> summary")
    for suite in suites:
        verdict = "ok" if suite.passed else "FAILED"
        numbers = ", ".join(f"{count} {kind}" for kind, count in suite.counts.items())
        print(f"    {suite.name:<14} {verdict:<7} {suite.seconds:7.1f} s   {numbers}")
    total = {kind: sum(suite.counts[kind] for suite in suites) for kind in suites[0].counts}
    print(f"{total['passed']} passed, {total['failed']} failed, {total['skipped']} skipped")


def main(asked: list[str]) -> int:
    suites: list[Suite] = []
    if not asked or "rust" in asked:
        suites += rust_suites()
    if not asked or "python" in asked:
        suites.append(python_suite())
    for suite in suites:
        suite.run()
    summarise(suites)
    return 0 if all(suite.passed for suite in suites) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
