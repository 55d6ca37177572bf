"""Imports torch once and forks ranks that join a process group and run scenarios. See `ranks`."""

import datetime
import faulthandler
import gc
import importlib
import os
import signal
import sys
import threading
import traceback
from multiprocessing.connection import Client
from pathlib import Path

import torch
import torch._dynamo  # DDP's constructor imports it
import torch.distributed as dist
from _pytest.assertion import install_importhook
from _pytest.config import get_config

import gradwire.torch.ddp  # noqa: F401
from gradwire.torch.backends import cpu, cuda, dispatch, host
from tests.csrc.emulated.operators import emulate
from tests.distributed.serving import serve

CARRIER = "carrier"
"""A backend that takes tensors from where they are, which is not called Gloo."""


def main(address: str, scenarios: str, *imports: str) -> None:
    """Fork a rank for each request, until the pipe is closed."""
    install_importhook(get_config())  # a failed assertion of a test shows its values
    for name in imports:
        importlib.import_module(name)
    assert threading.active_count() == 1, "a fork would lose the other threads"
    gc.collect()
    gc.freeze()  # ranks collect garbage often, and need not look through torch each time
    # Nobody waits for the ranks: their ids stay taken, so whoever kills one kills no stranger.
    with Client(address) as pipe:
        while True:
            try:
                rank, world_size, timeout, folder, backend, transport = pipe.recv()
            except EOFError:
                return
            pid = os.fork()
            if pid == 0:
                os.close(pipe.fileno())
                dispatch._IN_PLACE = {"cpu": cpu, "host": host, "cuda": cuda}[backend]
                if backend == "cuda":
                    emulate()
                _be_rank(rank, world_size, timeout, Path(folder), transport, scenarios)
            pipe.send(pid)


def _be_rank(
    rank: int, world_size: int, timeout: float, folder: Path, transport: str, scenarios: str
) -> None:
    status = 1
    try:
        log = os.open(folder / f"rank{rank}.log", os.O_WRONLY | os.O_CREAT)
        os.dup2(log, 1)
        os.dup2(log, 2)
        faulthandler.register(signal.SIGUSR1, all_threads=True)
        _serve(rank, world_size, timeout, folder, transport, scenarios)
        status = 0
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stderr.flush()
        os._exit(status)  # not back into the loop of the process that was forked


def _serve(
    rank: int, world_size: int, timeout: float, folder: Path, transport: str, scenarios: str
) -> None:
    pipe = Client(str(folder / "ranks"))
    torch.set_num_threads(1)
    if transport == "nccl":
        torch.cuda.set_device(rank % torch.cuda.device_count())
    if transport == CARRIER:
        # On the device that tensors of the CPU stand for, it is what NCCL is on a GPU.
        dist.Backend.register_backend(CARRIER, dist.ProcessGroupGloo, devices=["cpu"])
    dist.init_process_group(
        transport,
        init_method=f"file://{folder}/store",
        rank=rank,
        world_size=world_size,
        timeout=datetime.timedelta(seconds=timeout),
    )
    serve(pipe, scenarios, rank, world_size)


if __name__ == "__main__":
    main(*sys.argv[1:])
