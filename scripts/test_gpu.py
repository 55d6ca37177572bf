"""Run the tests that need a GPU; without one, say so and fail.

    python3 scripts/test_gpu.py [pytest's arguments]

Nothing is installed: the interpreter has torch, pytest, pytest-timeout, hypothesis and gradwire,
whose wheel is enough beside the folders ``tests`` and ``scripts``.
"""

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
NEEDED = ("torch", "pytest", "pytest_timeout", "hypothesis", "gradwire")


def main() -> int:
    """Run them."""
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
    command = [sys.executable, "-m", "pytest", "--import-mode=importlib", "tests/gpu"]
    # Ranks are processes of their own, which import the tests from here.
    path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
    environment = {**os.environ, "PYTHONPATH": path}
    return subprocess.run([*command, *sys.argv[1:]], cwd=ROOT, env=environment).returncode


if __name__ == "__main__":
    sys.exit(main())
