"""Run the trainers' tests with the oldest releases that pyproject.toml declares.

    .venv/bin/python scripts/oldest_trainers.py [PYTEST ARGUMENT ...]

They go into an environment of their own, ``.venv-oldest``, which shares all else, torch too, with
the one that runs this file.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import sysconfig
import tomllib
from importlib.metadata import version
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
VENV = ROOT / ".venv-oldest"
EXTRAS = ("accelerate", "lightning", "transformers")
FLOOR = re.compile(r"([a-z]+)>=([\d.]+)")
SHARED = re.compile(r"(torch|triton|numpy|nvidia-|cuda-)")


def floors() -> dict[str, str]:
    """Return the oldest release of each trainer that all extras together allow."""
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    found: dict[str, str] = {}
    for extra in EXTRAS:
        for requirement in extras["optional-dependencies"][extra]:
            if match := FLOOR.fullmatch(requirement):
                name, floor = match.groups()
                found[name] = max(found.get(name, "0"), floor, key=_numbers)
    return found


def _numbers(floor: str) -> list[int]:
    return [int(each) for each in floor.split(".")]


def uv(*words: str | Path, given: str | None = None) -> str:
    """Run uv; return what it prints."""
    command = [sys.executable, "-m", "uv", *map(str, words)]
    done = subprocess.run(command, input=given, stdout=subprocess.PIPE, text=True, check=True)
    return done.stdout


def main(arguments: list[str]) -> int:
    oldest = [f"{name}=={floor}" for name, floor in floors().items()]
    print(f"==> {', '.join(oldest)}", flush=True)
    shared = [f"{name}=={version(name).partition('+')[0]}" for name in ("torch", "numpy")]
    wanted = "\n".join([*oldest, *shared])
    listed = uv("pip", "compile", "--quiet", "--no-header", "--no-annotate", "-", given=wanted)
    own = [line for line in listed.splitlines() if not SHARED.match(line)]
    uv("venv", "--quiet", "--clear", "--python", sys.executable, VENV)
    python = VENV / "bin" / "python"
    uv("pip", "install", "--quiet", "--no-deps", "--python", python, *own)
    site = subprocess.check_output(
        [python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"], text=True
    )
    Path(site.strip(), "shared.pth").write_text(sysconfig.get_path("purelib"))
    path = os.pathsep.join([str(ROOT / "python"), str(ROOT)])
    command = [str(python), "-m", "pytest", "tests/trainers", *arguments]
    return subprocess.run(command, cwd=ROOT, env=os.environ | {"PYTHONPATH": path}).returncode


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
