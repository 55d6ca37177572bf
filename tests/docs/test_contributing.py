"""The toy parts that CONTRIBUTING.md names still fit in."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.skipif(
    shutil.which("git") is None or not (ROOT / ".git").exists(), reason="not a git checkout"
)
def test_the_diffs_of_the_toy_parts_apply():
    assert len(list((ROOT / "tests" / "toy_parts").glob("*.diff"))) == 3
    check = [sys.executable, ROOT / "scripts" / "toy_parts.py", "--check"]
    done = subprocess.run(check, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
