"""Runs the example under torchrun's agents, and loses ranks and agents on purpose.

    python -m tests.trainers.agents FOLDER

Importing what the example needs takes longer than all training here. So one process imports it, the
agents are forked from there, and from each agent its workers, by ``start_method="fork"``. What
takes two agents runs beside the rest, because it mostly waits.
"""

import os
import signal
import socket
import sys
import threading
import traceback
from pathlib import Path
from typing import Any

import torch
import torch._dynamo  # DDP's constructor imports it
import torch.distributed.checkpoint
import torch.distributed.checkpoint.state_dict
import torch.nn.modules.module as modules
from torch.distributed.launcher.api import LaunchConfig, elastic_launch

import gradwire.torch.ddp
import gradwire.torch.optim  # noqa: F401
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


def run(workers: int, folder: str, steps: int, losses: dict[int, int]) -> None:
    """Do what ``torchrun --nproc-per-node=WORKERS --max-restarts=3`` does, in a process."""
    with socket.create_server(("localhost", 0)) as server:
        port = server.getsockname()[1]
    pid = os.fork()
    if pid == 0:
        status = 1
        try:
            config = LaunchConfig(
                min_nodes=1,
                max_nodes=1,
                nproc_per_node=workers,
                run_id="test",
                rdzv_backend="c10d",
                rdzv_endpoint=f"localhost:{port}",
                max_restarts=3,
                start_method="fork",
                local_addr="localhost",
            )
            elastic_launch(config, work)(folder, steps, losses)
            status = 0
        except BaseException:
            traceback.print_exc()
        finally:
            sys.stderr.flush()
            os._exit(status)
    print(f"agent: {os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])}", flush=True)


def main(folder: str) -> None:
    """Train undisturbed; with a loss of one rank, then of all; and on with fewer ranks."""
    assert threading.active_count() == 1, "a fork would lose the other threads"
    # Else a restart finds the addresses of Gloo's last processes in the store of the agent.
    os.environ["TORCH_DISABLE_SHARE_RDZV_TCP_STORE"] = "1"
    beside = nodes.forked(lambda: nodes.main(f"{folder}/nodes"))
    run(3, f"{folder}/calm", 20, {})
    run(3, f"{folder}/lossy", 30, {0: 1, 1: 2})
    run(2, f"{folder}/lossy", 30, {})
    os.waitpid(beside, 0)


if __name__ == "__main__":
    main(sys.argv[1])
