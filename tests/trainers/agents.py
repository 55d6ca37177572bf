"""Runs the example under torchrun's agents, and loses ranks and agents on purpose.

    python -m tests.trainers.agents FOLDER

Importing what the example needs takes longer than all training here. So one process imports it, the
agents are forked from there, and from each agent its workers, by ``start_method="fork"``. What
takes two agents runs beside the rest, because it mostly waits.
"""

import os
import signal
import sys
import threading
from pathlib import Path
from typing import Any

import torch
import torch.distributed.checkpoint
import torch.distributed.checkpoint.state_dict
import torch.nn.modules.module as modules

from tests.torchrun import launch
from tests.trainers import nodes
from tests.trainers.example import run_example


def work(folder: str, steps: int, losses: dict[int, int]) -> None:
    """Run the example; lose a rank in its 14th backward pass.

    ``losses`` has that rank by the number of checkpoints at the start. If there are any, the agent
    is lost as well, and with it the job.
    """
    complete = len(list(Path(folder).glob("*/.metadata")))
    passes = 0

    def count(module: torch.nn.Module, *_: Any) -> None:
        nonlocal passes
        passes += isinstance(module, torch.nn.ReLU)  # in the middle of the model
        if passes == 14:
            if complete:
                os.kill(os.getppid(), signal.SIGKILL)
            os.kill(os.getpid(), signal.SIGKILL)

    if losses.get(complete) == int(os.environ["RANK"]):
        modules.register_module_full_backward_hook(count)  # of all modules
    run_example(folder, steps)


def main(folder: str) -> None:
    """Train undisturbed; with a loss of one rank, then of all; and on with fewer ranks."""
    assert threading.active_count() == 1, "a fork would lose the other threads"
    # Else a restart finds the addresses of Gloo's last processes in the store of the agent.
    os.environ["TORCH_DISABLE_SHARE_RDZV_TCP_STORE"] = "1"
    beside = nodes.forked(lambda: nodes.main(f"{folder}/nodes"))
    launch(work, f"{folder}/calm", 20, {}, workers=3, restarts=3)
    launch(work, f"{folder}/lossy", 30, {0: 1, 1: 2}, workers=3, restarts=3)
    launch(work, f"{folder}/lossy", 30, {}, workers=2, restarts=3)
    os.waitpid(beside, 0)


if __name__ == "__main__":
    main(sys.argv[1])
