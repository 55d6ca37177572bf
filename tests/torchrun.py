"""Forks what torchrun starts, an agent and its workers, from a process that has torch imported."""

import os
import socket
import sys
import traceback
from collections.abc import Callable
from pathlib import Path

import torch._dynamo  # noqa: F401 -- DDP and optimizers import it, which takes seconds
from torch.distributed.launcher.api import LaunchConfig, elastic_launch


def launch(
    work: Callable[..., None],
    *arguments: object,
    workers: int,
    restarts: int = 0,
    folder: Path | None = None,
    title: str = "agent",
) -> None:
    """Do what torchrun does for one node of so many workers and restarts, and print its status.

    With a folder, its workers run there, and what they print is left in a file.
    """
    with socket.create_server(("localhost", 0)) as server:
        port = server.getsockname()[1]
    pid = os.fork()
    if pid == 0:
        status = 1
        try:
            if folder is not None:
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
                max_restarts=restarts,
                start_method="fork",
                local_addr="localhost",
            )
            elastic_launch(config, work)(*arguments)
            status = 0
        except BaseException:
            traceback.print_exc()
        finally:
            sys.stderr.flush()
            os._exit(status)
    print(f"{title}: {os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])}", flush=True)
