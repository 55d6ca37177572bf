"""Run the tests that need a GPU; without one, say so and fail.

    python3 scripts/test_gpu.py [--tests] [--sanitize [TOOL ...]] [--soak [MINUTES]] [--out FOLDER]
                                [-- pytest's arguments]

Without one of the first three, the tests run and then a share of them under compute-sanitizer.
Nothing is installed: the interpreter has torch, numpy, pytest and gradwire, whose wheel is enough
beside the folders ``benches``, ``scripts`` and ``tests``. What came of it is written to the folder:
``test-gpu.json``, and what each command said.
"""

import argparse
import importlib.util
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
NEEDED = ("torch", "numpy", "pytest", "gradwire")
TOOLS = ("memcheck", "racecheck", "initcheck", "synccheck")
SANITIZER = "compute-sanitizer"
WHEEL = "nvidia-cuda-sanitizer-api"
FOUND = 86
"""What the sanitizer exits with if it has found something."""

PYTEST = ("-m", "pytest", "-c", "tests/gpu/pytest.ini", "--rootdir=.", "--confcutdir=tests/gpu")
SHARE = ("tests/gpu/test_tensors.py", "-k", "kernels")
"""What runs under the sanitizers, of which `tests/gpu/conftest.py` takes every seventh case."""


def arguments(given: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, prog="make test-gpu ARGS=...")
    parser.add_argument("--tests", action="store_true", help="the tests")
    parser.add_argument(
        "--sanitize",
        nargs="*",
        choices=TOOLS,
        metavar="TOOL",
        help=f"a share of the tests under {SANITIZER} (tools: {', '.join(TOOLS)})",
    )
    parser.add_argument(
        "--soak", nargs="?", type=float, const=5.0, metavar="MINUTES", help="thousands of steps (5)"
    )
    parser.add_argument("--out", type=Path, default=ROOT / ".cache" / "test-gpu", metavar="FOLDER")
    parser.add_argument("pytest", nargs="*", help="arguments for pytest, after --")
    chosen = parser.parse_args(given)
    if not chosen.tests and chosen.sanitize is None and chosen.soak is None:
        chosen.tests, chosen.sanitize = True, []
    return chosen


def find_sanitizer() -> Path | None:
    """Return compute-sanitizer: of the path, of the CUDA toolkit, or of the registry's wheel."""
    homes = [os.environ.get("CUDA_HOME"), os.environ.get("CUDA_PATH"), "/usr/local/cuda"]
    packages = [Path(folder, "nvidia", "cu13") for folder in sys.path if folder]
    places = [*(Path(home) for home in homes if home), *packages]
    if found := shutil.which(SANITIZER):
        return Path(found)
    inside = (place / folder / SANITIZER for place in places for folder in ("bin", SANITIZER))
    return next((path for path in inside if path.is_file()), None)


class Run:
    """The commands of a run, and a folder for what they say.

    Attributes
    ----------
    record : dict
        What is written as ``test-gpu.json``, anew after each command.
    """

    def __init__(self, folder: Path, facts: dict[str, Any]) -> None:
        self.folder = folder
        self.record: dict[str, Any] = {**facts, "commands": []}
        folder.mkdir(parents=True, exist_ok=True)

    def do(self, name: str, command: Sequence[str | Path], **variables: str) -> bool:
        """Run a command, and keep what it says in a file; whether it succeeded."""
        words = [str(word) for word in command]
        print(f"\n==> {name}: {' '.join(words)}", flush=True)
        # Ranks are processes of their own, which import the tests from here.
        path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
        began, last = time.monotonic(), ""
        with (
            (self.folder / f"{name}.txt").open("w") as log,
            subprocess.Popen(
                words,
                cwd=ROOT,
                env={**os.environ, "PYTHONPATH": path, **variables},
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                errors="replace",
            ) as process,
        ):
            assert process.stdout is not None
            for line in process.stdout:
                log.write(line)
                print(line, end="", flush=True)
                last = line.strip() or last
        seconds = round(time.monotonic() - began, 1)
        self.add({"name": name, "status": process.returncode, "seconds": seconds, "last": last})
        return process.returncode == 0

    def add(self, entry: dict[str, Any]) -> None:
        self.record["commands"].append(entry)
        (self.folder / "test-gpu.json").write_text(json.dumps(self.record, indent=1) + "\n")


def sanitized(run: Run, tools: Sequence[str]) -> Iterator[bool]:
    """Run a share of the tests under each tool; yield whether nothing was found."""
    sanitizer = find_sanitizer()
    if sanitizer is None:
        reason = (
            f"{SANITIZER} is neither on the path, nor in CUDA_HOME, nor in the package {WHEEL}: "
            "nothing ran under it"
        )
        print(f"test-gpu: {reason}", file=sys.stderr)
        run.add({"name": "sanitizers", "status": 2, "seconds": 0.0, "last": reason})
        yield False
        return
    for tool in tools or TOOLS:
        log = run.folder / f"{tool}-found.txt"
        options: tuple[str | Path, ...] = (
            *("--tool", tool, "--error-exitcode", str(FOUND), "--log-file", log),
            # Of torch's kernels and calls nothing is to be found out here.
            *("--kernel-name", "kns=gradwire", "--report-api-errors", "no"),
            *("--target-processes", "application-only"),
        )
        command = [sanitizer, *options, sys.executable, *PYTEST, "-q", *SHARE]
        # Each tensor in memory of its own, so that what is beyond one is nobody's.
        variables = {"GRADWIRE_TEST_SANITIZED": "1", "PYTORCH_NO_CUDA_MEMORY_CACHING": "1"}
        yield run.do(tool, command, **variables)


def main(given: Sequence[str] | None = None) -> int:
    """Run them."""
    chosen = arguments(given)
    missing = [name for name in NEEDED if importlib.util.find_spec(name) is None]
    if missing:
        print(f"test-gpu: {sys.executable} lacks {', '.join(missing)}", file=sys.stderr)
        return 2
    import torch

    if not torch.cuda.is_available():
        print("test-gpu: no GPU here: nothing was tested", file=sys.stderr)
        return 2
    for index in range(torch.cuda.device_count()):
        print(f"test-gpu: cuda:{index} is {torch.cuda.get_device_name(index)}", flush=True)
    sys.path.insert(0, str(ROOT))
    from benches.gpu.measure import facts

    run = Run(chosen.out, facts("cuda"))
    passed = []
    if chosen.tests:
        passed.append(run.do("tests", [sys.executable, *PYTEST, "tests/gpu", *chosen.pytest]))
    if chosen.sanitize is not None:
        passed += sanitized(run, chosen.sanitize)
    if chosen.soak is not None:
        minutes = ["--minutes", str(chosen.soak), "--out", str(chosen.out / "soak.json")]
        passed.append(run.do("soak", [sys.executable, "-m", "tests.gpu.soak", *minutes]))
    print(f"\ntest-gpu: {sum(passed)} of {len(passed)} commands passed; written: {chosen.out}")
    return 0 if all(passed) else 1


if __name__ == "__main__":
    sys.exit(main())
