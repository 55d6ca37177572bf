"""The example of elastic restarts, as the ranks of the tests run it."""

import runpy
import sys
from pathlib import Path

import torch

EXAMPLE = Path(__file__).parents[2] / "examples" / "torchrun_elastic.py"


def run_example(folder: str, steps: int) -> None:
    """Run it as it is, always from the same parameters."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    sys.argv = [str(EXAMPLE), folder, str(steps)]
    runpy.run_path(str(EXAMPLE), run_name="__main__")
