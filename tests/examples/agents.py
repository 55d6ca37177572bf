"""Runs examples under torchrun's agent, one after another, in processes that share one import.

    python -m tests.examples.agents FOLDER

Importing what an example needs takes longer than all that it does here. So one process imports it,
the agents are forked from there, and from each agent its workers, by ``start_method="fork"``. What
the workers of an example print is left in FOLDER, in a file with the example's title.
"""

import runpy
import sys
import threading
from pathlib import Path

import torch
import torch.distributed.checkpoint
import torch.distributed.fsdp

from tests.torchrun import launch

EXAMPLES = Path(__file__).parents[2] / "examples"
RUNS = {
    "first": (2, "train.py --steps 50 --checkpoint saved"),
    "resumed": (2, "train.py --steps 100 --checkpoint saved"),
    "dense": (2, "train.py --steps 50 --dense"),
    "hierarchy": (4, "hierarchy.py 2"),
    "fsdp2": (4, "fsdp2.py 2"),
    "diloco": (2, "diloco.py"),
}
"""Numbers of workers, and examples with their arguments, by title."""


def work(example: str, *arguments: str) -> None:
    """Run an example as a worker does."""
    torch.set_num_threads(1)
    sys.argv = [str(EXAMPLES / example), *arguments]
    runpy.run_path(sys.argv[0], run_name="__main__")


def main(folder: Path) -> None:
    """Run all examples."""
    assert threading.active_count() == 1, "a fork would lose the other threads"
    for title, (workers, program) in RUNS.items():
        launch(work, *program.split(), workers=workers, folder=folder, title=title)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
