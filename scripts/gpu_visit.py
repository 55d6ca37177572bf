"""A visit to a GPU: are the kernels right, how fast are they, what do sanitizers find.

    make gpu-visit                                # anywhere, without a GPU: makes a folder
    python3 scripts/gpu_visit.py STEP [STEP ...]  # in that folder, or in the sources

The folder has the wheel, unpacked, the library of the extension, the tests and the benches.
Nothing is installed: a Python with torch, numpy and pytest is enough. Where the library is missing
or has no code for the GPU, it is compiled, if nvcc is there.

Each step takes at most `--limit` minutes, and each test has a limit of its own; one that hangs is
ended with its process, and the others go on. What came of a step is in `--out`: STEP.json, with
date, chip, driver and versions, and STEP.txt, the end of what was printed.
"""

import argparse
import contextlib
import importlib.util
import json
import os
import shutil
import signal
import subprocess
import sys
import time
import zipfile
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
NEEDED = ("torch", "numpy", "pytest")
NAME = "libgradwire_cuda.so"

SANITIZER = "compute-sanitizer"
SANITIZER_WHEEL = "nvidia-cuda-sanitizer-api"
TOOLS = ("memcheck", "racecheck", "initcheck", "synccheck")
FOUND = 86
"""What the sanitizer exits with if it has found something."""

PYTEST = (
    *("-m", "pytest", "-q", "-c", "tests/gpu/pytest.ini", "--rootdir=."),
    *("--confcutdir=tests/gpu", "-p", "no:cacheprovider"),
)
SHARE = ("tests/gpu/test_tensors.py", "-k", "kernels")
"""What runs under the sanitizers, of which `tests/gpu/conftest.py` takes a share."""
KEPT = 60_000
"""Bytes of what was printed that are kept."""
RESTARTS = 6
"""Tests that may hang, or leave a device that is lost, before the others are left."""

PASSED, FAILED, UNAVAILABLE = "passed", "failed", "unavailable"
Record = dict[str, Any]

BUILD = "import sys; from gradwire.torch import build_cuda; print(build_cuda(folder=sys.argv[1]))"
"""Takes no architectures: those of the GPUs here."""
TOUCH = "import torch; print(torch.ones(1, device='cuda').add_(1).item())"


def arguments(given: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    steps = [f"{name}: {step.__doc__}" for name, step in STEPS.items()]
    parser.add_argument(
        "steps",
        nargs="+",
        metavar="STEP",
        choices=("prepare", *STEPS),
        help="; ".join(["prepare: make the folder, as `make gpu-visit` does", *steps]),
    )
    parser.add_argument("--limit", type=float, default=9.0, metavar="MINUTES", help="of a step (9)")
    parser.add_argument("--out", type=Path, default=ROOT / "results", metavar="FOLDER")
    parser.add_argument(
        "--tools",
        nargs="+",
        choices=TOOLS,
        default=TOOLS[:2],
        help=f"of `sanitize`, from {', '.join(TOOLS)} (default: the first two)",
    )
    parser.add_argument(
        "--emulated",
        action="store_true",
        help="try the visit without a GPU: emulated kernels over tensors on the CPU",
    )
    parser.add_argument("--select", metavar="EXPRESSION", help="tests to run, as pytest's -k")
    parser.add_argument(
        "--architectures", nargs="+", default=["90"], metavar="NN", help="of `prepare` (90)"
    )
    return parser.parse_args(given)


# Commands ----------------------------------------------------------------------------------------


@dataclass
class Visit:
    """Where results go, how long a step may take, and what its commands are given."""

    out: Path
    minutes: float = 9.0
    emulated: bool = False
    tools: Sequence[str] = TOOLS[:2]
    select: str | None = None
    variables: dict[str, str] = field(default_factory=dict)
    deadline: float = 0.0

    def begin(self) -> None:
        """Start the time of a step."""
        self.deadline = time.monotonic() + 60 * self.minutes

    @property
    def left(self) -> float:
        """Seconds of the step that are left."""
        return max(self.deadline - time.monotonic(), 1.0)

    def run(
        self,
        name: str,
        command: Sequence[str | Path],
        *,
        seconds: float | None = None,
        **variables: str,
    ) -> tuple[int | None, str]:
        """Run a command; return its status, None if it had to be ended, and the end of its words.

        A process that waits for a device takes no signal but the one that ends it.
        """
        words = [str(word) for word in command]
        print(f"\n==> {name}: {' '.join(words)}", flush=True)
        until = time.monotonic() + min(seconds or self.left, self.left)
        log = self.out / f"{name}.txt"
        path = [str(ROOT), str(ROOT / "python"), os.environ.get("PYTHONPATH", "")]
        environment = {
            **os.environ,
            "PYTHONPATH": os.pathsep.join(filter(None, path)),
            "GRADWIRE_VISIT_EMULATED": str(int(self.emulated)),
            **self.variables,
            **variables,
        }
        with log.open("ab") as written, log.open("rb") as read:
            start = read.seek(0, os.SEEK_END)
            process = subprocess.Popen(
                words,
                cwd=ROOT,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=written,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
            status = None
            while status is None and time.monotonic() < until:
                with contextlib.suppress(subprocess.TimeoutExpired):
                    status = process.wait(0.2)
                _show(read.read())
            _end(process)
            _show(read.read())
            read.seek(start)
            said = read.read().decode(errors="replace")
        log.write_bytes(log.read_bytes()[-KEPT:])
        return status, said[-KEPT:]

    def program(self, name: str, *command: str, **options: Any) -> tuple[int | None, str]:
        """Run a module of Python."""
        return self.run(name, [sys.executable, "-X", "faulthandler", *command], **options)


def _show(data: bytes) -> None:
    print(data.decode(errors="replace"), end="", flush=True)


def _end(process: "subprocess.Popen[bytes]") -> None:
    """End a process and those that it has started: with the stacks of its threads, if it can."""
    for number, seconds in ((signal.SIGABRT, 3.0), (signal.SIGKILL, 10.0)):
        if number == signal.SIGABRT and process.poll() is not None:
            continue
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, number)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(seconds)
    if process.poll() is None:
        print(f"process {process.pid} cannot be ended: the device may be lost", file=sys.stderr)


def _answer(said: str) -> Record | None:
    """Return what a program has printed as JSON, last of its words but for those of a driver."""
    for line in reversed(said.splitlines()):
        with contextlib.suppress(ValueError):
            found = json.loads(line)
            if isinstance(found, dict):
                return found
    return None


def _last_line(said: str) -> str:
    return next((line.strip() for line in reversed(said.splitlines()) if line.strip()), "")


# Steps -------------------------------------------------------------------------------------------


def run_tests(
    visit: Visit,
    name: str,
    tests: Sequence[str],
    *,
    limit: float,
    before: Sequence[str | Path] = (),
    seconds: float | None = None,
    **variables: str,
) -> Record:
    """Run tests, in a new process after each that hangs; return what came of them."""
    journal = visit.out / f"{name}.jsonl"
    stacks = Path(f"{journal}.stacks")
    for path in (journal, stacks):
        path.write_text("")
    selected = ("-k", visit.select) if visit.select and "-k" not in tests else ()
    until = time.monotonic() + min(seconds or visit.left, visit.left)
    variables |= {"GRADWIRE_TEST_JOURNAL": str(journal), "GRADWIRE_TEST_LIMIT": str(limit)}
    restarts, dumps = 0, ""
    while True:
        command = [*before, sys.executable, *PYTEST, *tests, *selected]
        over = max(until - time.monotonic(), 1.0)
        status, said = visit.run(name, command, seconds=over, **variables)
        notes = [json.loads(line) for line in journal.read_text().splitlines()]
        ended = {each["test"]: each for each in notes if "outcome" in each}
        begun = [each["begun"] for each in notes if "begun" in each and each["begun"] not in ended]
        dumped = stacks.read_text()
        dumps += dumped
        stacks.write_text("")
        for test in begun:
            kind, why = "hung", f"no end in {limit:g} s"
            if status is None:
                why = "the time of the step was over"
            elif not dumped:
                kind, why = "died", f"its process ended with {status}: {_last_line(said)}"
            ended[test] = {"test": test, "outcome": kind, "words": why, "seconds": None}
            with journal.open("a") as file:
                file.write(json.dumps(ended[test]) + "\n")
        again = bool(begun) or any("lost" in each for each in notes[-1:])
        restarts += again
        if status is None or not again or restarts > RESTARTS or time.monotonic() > until:
            break
    outcomes = [each["outcome"] for each in ended.values()]
    collected = max([each["collected"] for each in notes if "collected" in each], default=0)
    bad = [each for each in ended.values() if each["outcome"] not in ("passed", "skipped")]
    slowest = sorted(ended.values(), key=lambda each: -(each["seconds"] or 0.0))[:5]
    for path in (journal, stacks):
        path.unlink()
    complete = len(ended) >= collected > 0
    return {
        "outcome": PASSED if complete and not bad and status in (0, 5) else FAILED,
        "status": status,
        "tests": {kind: outcomes.count(kind) for kind in sorted(set(outcomes))},
        "left": max(collected - len(ended), 0),
        "failed": bad[:20],
        "stacks": dumps[-4000:],
        "slowest": {each["test"]: each["seconds"] for each in slowest},
        "said": _last_line(said),
    }


def tensors(visit: Visit) -> Record:
    """Frames and states of single tensors and buckets are those of the CPU, and no load hangs"""
    lazy = alive(visit, "tensors", ["lazy"])
    found = run_tests(visit, "tensors", ["tests/gpu/test_tensors.py"], limit=120.0)
    found["lazy"] = lazy
    if lazy["outcome"] == FAILED:
        found["outcome"] = FAILED
    return found


def ddp(visit: Visit) -> Record:
    """DDP with two processes on one GPU over Gloo, and with NCCL"""
    return run_tests(visit, "ddp", ["tests/gpu/test_ddp.py"], limit=280.0)


def quick(visit: Visit) -> Record:
    """The benches, briefly"""
    return bench(visit, "--quick", name="quick")


def bench(visit: Visit, *options: str, name: str = "bench") -> Record:
    """The benches: kernels beside a copy on the device and what torch offers"""
    times = visit.out / f"{name}-times.json"
    times.unlink(missing_ok=True)
    words = ("tests.gpu.emulated", "bench") if visit.emulated else ("benches.gpu", *options)
    status, said = visit.program(name, "-m", *words, "--out", str(times))
    document = json.loads(times.read_text()) if times.exists() else {"sections": {}, "failed": {}}
    return {
        "outcome": PASSED if status == 0 else FAILED,
        "status": status,
        "sections": list(document["sections"]),
        "failed": document["failed"],
        "said": _last_line(said),
        "file": times.name,
    }


def sanitize(visit: Visit) -> Record:
    """A share of the tests of tensors under compute-sanitizer"""
    if visit.emulated:
        return _unavailable(f"{SANITIZER} needs a GPU")
    sanitizer = find_sanitizer()
    if sanitizer is None:
        return _unavailable(
            f"{SANITIZER} is neither on the path, nor in CUDA_HOME, nor in the package "
            f"{SANITIZER_WHEEL}: nothing ran under it"
        )
    touch: list[str | Path] = [sanitizer, "--tool", "memcheck", sys.executable, "-c", TOUCH]
    status, said = visit.run("sanitize", touch, seconds=120.0)
    if status != 0:
        return _unavailable(f"{SANITIZER} does not run here: {_last_line(said)}")
    found: Record = {}
    for i, tool in enumerate(visit.tools):
        share = visit.left / (len(visit.tools) - i)
        found[tool] = _sanitized(visit, sanitizer, tool, share)
    bad = any(each["outcome"] == FAILED for each in found.values())
    return {"outcome": FAILED if bad else PASSED, "tools": found}


def _sanitized(visit: Visit, sanitizer: Path, tool: str, seconds: float) -> Record:
    log = visit.out / f"{tool}-found.txt"
    log.unlink(missing_ok=True)
    options: tuple[str | Path, ...] = (
        *("--tool", tool, "--error-exitcode", str(FOUND), "--log-file", log),
        # Of torch's kernels and calls nothing is to be found out here.
        *("--kernel-name", "kns=gradwire", "--report-api-errors", "no"),
        *("--target-processes", "application-only"),
    )
    # Each tensor in memory of its own, so that what is beyond one is nobody's.
    variables = {"GRADWIRE_TEST_SANITIZED": "1", "PYTORCH_NO_CUDA_MEMORY_CACHING": "1"}
    before = [sanitizer, *options]
    found = run_tests(
        visit, tool, SHARE, limit=seconds, seconds=seconds, before=before, **variables
    )
    said = log.read_text(errors="replace") if log.exists() else ""
    log.unlink(missing_ok=True)
    found["found"] = said[:4000]
    # The share of a slow tool may take longer than there is time: what ran counts.
    ran = found["tests"].get("passed", 0)
    if found["status"] is None and ran and "ERROR SUMMARY" not in said and "=== Error" not in said:
        others = [each for each in found["failed"] if each.get("outcome") == "failed"]
        found["outcome"] = FAILED if others else PASSED
    return found


def liveness(visit: Visit) -> Record:
    """Do encodes get through beside kernels that hold multiprocessors, is a lost device said"""
    return alive(visit, "liveness", ["lazy", "held", "poison"])


def alive(visit: Visit, name: str, scenarios: Iterable[str]) -> Record:
    """Run scenarios of `tests/gpu/liveness.py`, each in a process of its own."""
    if visit.emulated:
        return _unavailable("emulated kernels hold no multiprocessors: that needs a GPU")
    found: Record = {}
    for scenario in scenarios:
        status, said = visit.program(name, "-m", "tests.gpu.liveness", scenario, seconds=150.0)
        found[scenario] = {"status": status, "answer": _answer(said) or _last_line(said)}
    bad = any(each["status"] != 0 for each in found.values())
    return {"outcome": FAILED if bad else PASSED, "scenarios": found}


def soak(visit: Visit) -> Record:
    """Thousands of steps beside the core, while streams and collectives are busy"""
    out = visit.out / "soak-scenarios.json"
    out.unlink(missing_ok=True)
    minutes = str(max(0.75 * visit.minutes - 0.5, 0.1))
    words = ("emulated", "soak") if visit.emulated else ("soak", "--minutes", minutes)
    status, said = visit.program(
        "soak", "-m", f"tests.gpu.{words[0]}", *words[1:], "--out", str(out)
    )
    found = json.loads(out.read_text())["scenarios"] if out.exists() else {}
    out.unlink(missing_ok=True)
    outcome = PASSED if status == 0 else FAILED
    return {"outcome": outcome, "status": status, "scenarios": found, "said": _last_line(said)}


STEPS: dict[str, Callable[[Visit], Record]] = {
    each.__name__: each for each in (tensors, quick, ddp, sanitize, liveness, bench, soak)
}
"""What is worth the time first comes first: nothing after `tensors` is, if that fails."""


def _unavailable(why: str) -> Record:
    print(f"gpu-visit: {why}", file=sys.stderr)
    return {"outcome": UNAVAILABLE, "words": why}


def find_sanitizer() -> Path | None:
    """Return compute-sanitizer: of the path, of the CUDA toolkit, or of the registry's wheel."""
    homes = [os.environ.get("CUDA_HOME"), os.environ.get("CUDA_PATH"), "/usr/local/cuda"]
    packages = [Path(folder, "nvidia", "cu13") for folder in sys.path if folder]
    places = [*(Path(home) for home in homes if home), *packages]
    if found := shutil.which(SANITIZER):
        return Path(found)
    inside = (place / folder / SANITIZER for place in places for folder in ("bin", SANITIZER))
    return next((path for path in inside if path.is_file()), None)


# The machine -------------------------------------------------------------------------------------


def look(visit: Visit) -> Record:
    """Return what there is here; compile the library if there is none for the GPU.

    Python's own processes ask: a driver that hangs does not hang the visit.
    """
    carried = ROOT / NAME
    if carried.exists() and "GRADWIRE_CUDA_LIBRARY" not in os.environ:
        visit.variables["GRADWIRE_CUDA_LIBRARY"] = str(carried)
    found = _ask(visit)
    if not found["gpu"] or found["kernels"] or os.environ.get("GRADWIRE_CUDA_LIBRARY") == "none":
        return found
    print(f"gpu-visit: {found['reason']}: the library is compiled here", flush=True)
    status, said = visit.program("machine", "-c", BUILD, str(ROOT / ".cache" / "cuda"))
    if status != 0:
        return {**found, "build": _last_line(said)}
    visit.variables["GRADWIRE_CUDA_LIBRARY"] = _last_line(said)
    return {**_ask(visit), "build": "compiled here"}


def _ask(visit: Visit) -> Record:
    status, said = visit.program("machine", "-m", "tests.gpu.place", GRADWIRE_CUDA_TRIAL="0")
    words = f"nobody answers ({status}): {_last_line(said)}"
    return _answer(said) or {"gpu": False, "kernels": False, "reason": words, "facts": {}}


def prepare(folder: Path, wheel: Path, library: Path) -> None:
    """Make the folder of a visit."""
    shutil.rmtree(folder, ignore_errors=True)
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(folder / "python")
    shutil.copy2(library, folder / NAME)
    left = shutil.ignore_patterns("__pycache__", "*.so", "results", ".*")
    for name in ("tests", "benches"):
        shutil.copytree(ROOT / name, folder / name, ignore=left)
    (folder / "scripts").mkdir()
    shutil.copy2(__file__, folder / "scripts")
    nbytes = sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
    print(f"==> {folder}: {nbytes / 1e6:.1f} MB")


def prepared(architectures: Sequence[str]) -> int:
    """Make the folder from the newest wheel in dist, and a library that is compiled if needed."""
    from gradwire.torch.cuda import build

    wheels = sorted((ROOT / "dist").glob("gradwire-*.whl"), key=os.path.getmtime)
    if not wheels:
        print("gpu-visit: there is no wheel in dist: run `make gpu-visit`", file=sys.stderr)
        return 2
    cache = ROOT / ".cache"
    library = build.build_cuda(architectures=architectures, folder=cache / "cuda", progress=print)
    prepare(cache / "gpu-visit", wheels[-1], library)
    return 0


def main(given: Sequence[str] | None = None) -> int:
    """Run steps, and say what came of each; 0 if none has failed."""
    chosen = arguments(given)
    if "prepare" in chosen.steps:
        return prepared(chosen.architectures)
    missing = [name for name in NEEDED if importlib.util.find_spec(name) is None]
    if missing:
        print(f"gpu-visit: {sys.executable} lacks {', '.join(missing)}", file=sys.stderr)
        return 2
    out = chosen.out.resolve()
    out.mkdir(parents=True, exist_ok=True)
    visit = Visit(out, chosen.limit, chosen.emulated, chosen.tools, chosen.select)
    failed = 0
    for name in chosen.steps:
        for stale in (f"{name}.txt", "machine.txt"):
            (out / stale).unlink(missing_ok=True)
        visit.begin()
        began = time.monotonic()
        here = look(visit)
        by_host = os.environ.get("GRADWIRE_CUDA_LIBRARY") == "none" and name in ("tensors", "ddp")
        if here["gpu"] and (here["kernels"] or by_host):
            found = STEPS[name](visit)
        else:
            found = {"outcome": FAILED, "words": here["reason"]}
            print(f"gpu-visit: nothing was run: {here['reason']}", file=sys.stderr)
        seconds = round(time.monotonic() - began, 1)
        record = {"step": name, **found, "seconds": seconds, "machine": here}
        (out / f"{name}.json").write_text(json.dumps(record, indent=1) + "\n")
        (out / "machine.txt").unlink(missing_ok=True)
        print(
            f"\ngpu-visit: {name} {found['outcome']} in {seconds} s: {out / name}.json", flush=True
        )
        failed += found["outcome"] == FAILED
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
