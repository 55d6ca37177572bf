"""Runs an example as a person does."""

import os
import re
import subprocess
import sys
from pathlib import Path

EXAMPLES = Path(__file__).parents[2] / "examples"


def run(name: str, *arguments: str, folder: Path | None = None) -> str:
    """Return what an example prints, which has at most 60 lines."""
    assert len((EXAMPLES / name).read_text("utf-8").splitlines()) <= 60
    done = subprocess.run(
        [sys.executable, str(EXAMPLES / name), *arguments],
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def figures(said: str, before: str) -> list[float]:
    """Return the numbers that follow some words."""
    return [float(each) for each in re.findall(rf"{before}([\d.]+)", said)]
