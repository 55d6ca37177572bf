"""Runs examples under torchrun's agent, one after another, in processes that share one import.

    python -m tests.examples.agents FOLDER

Importing what an example needs takes longer than all that it does here. So one process imports it,
the agents are forked from there, and from each agent its workers, by ``start_method="fork"``. What
the workers of an example print is left in FOLDER, in a file with the example's title.
"""

import os
import runpy
import socket
import sys
import threading
import traceback
from pathlib import Path

import torch
import torch._dynamo  # DDP's constructor imports it
import torch.distributed.checkpoint
import torch.distributed.fsdp
from torch.distributed.launcher.api import LaunchConfig, elastic_launch

import gradwire.torch.ddp
import gradwire.torch.diloco
import gradwire.torch.fsdp
import gradwire.torch.optim  # noqa: F401

EXAMPLES = Path(__file__).parents[2] / "examples"
RUNS = {
    "resumed": (2, "train.py --steps 100 --checkpoint saved"),
    "dense": (2, "train.py --steps 50 --ratio 1"),
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


def launch(folder: Path, title: str, workers: int, *program: str) -> None:
    """Do what ``torchrun --nproc-per-node=WORKERS EXAMPLE ARGUMENTS`` does, in a process."""
    with socket.create_server(("localhost", 0)) as server:
        port = server.getsockname()[1]
    pid = os.fork()
    if pid == 0:
        status = 1
        try:
            output = os.open(folder / title, os.O_WRONLY | os.O_CREAT)
            os.dup2(output, 1)
            os.dup2(output, 2)
            os.chdir(folder)
            config = LaunchConfig(
                min_nodes=1,
                max_nodes=1,
                nproc_per_node=workers,
                run_id=title,
                rdzv_backend="c10d",
                rdzv_endpoint=f"localhost:{port}",
                start_method="fork",
                local_addr="localhost",
            )
            elastic_launch(config, work)(*program)
            status = 0
        except BaseException:
            traceback.print_exc()
        finally:
            sys.stderr.flush()
            os._exit(status)
    print(f"{title}: {os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])}", flush=True)


def main(folder: Path) -> None:
    """Run all examples."""
    assert threading.active_count() == 1, "a fork would lose the other threads"
    for title, (workers, program) in RUNS.items():
        launch(folder, title, workers, *program.split())


if __name__ == "__main__":
    main(Path(sys.argv[1]))
