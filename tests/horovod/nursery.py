"""Imports torch and Horovod once and forks the ranks that `horovodrun` asks for. See `launcher`."""

import contextlib
import faulthandler
import os
import selectors
import signal
import socket
import sys
import threading
import traceback
from multiprocessing.connection import Client, Connection
from pathlib import Path

import horovod.torch as hvd
import torch
import torch._dynamo  # the first step of an optimizer imports it

import gradwire.torch.ddp
import gradwire.torch.horovod  # noqa: F401
from tests.distributed.serving import serve


def main(address: str) -> None:
    """Fork a rank for each process that connects, and tell it how the rank has ended."""
    assert threading.active_count() == 1, "a fork would lose the other threads"
    events = selectors.DefaultSelector()
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(address)
        listener.listen()
        print("ready", flush=True)
        events.register(listener, selectors.EVENT_READ, "connection")
        events.register(sys.stdin, selectors.EVENT_READ, "end")
        while True:
            for key, _ in events.select():
                if key.data == "end":
                    return
                if key.data == "connection":
                    pipe = Connection(listener.accept()[0].detach())
                    variables, folder = pipe.recv()
                    pid = os.fork()
                    if pid == 0:
                        _be_rank(variables, Path(folder))
                    pipe.send(pid)
                    events.register(os.pidfd_open(pid), selectors.EVENT_READ, (pid, pipe))
                else:
                    events.unregister(key.fd)
                    os.close(key.fd)
                    _tell(*key.data)


def _tell(pid: int, pipe: Connection) -> None:
    status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    with contextlib.suppress(OSError):  # whoever asked for the rank may have been killed
        pipe.send(status)
    pipe.close()


def _be_rank(variables: dict[str, str], folder: Path) -> None:
    status = 1
    try:
        os.environ.clear()
        os.environ.update(variables)
        rank, world_size = (int(variables[f"HOROVOD_{name}"]) for name in ("RANK", "SIZE"))
        log = os.open(folder / f"rank{rank}.log", os.O_WRONLY | os.O_CREAT)
        os.dup2(log, 1)
        os.dup2(log, 2)
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        faulthandler.register(signal.SIGUSR1, all_threads=True)
        torch.set_num_threads(1)
        hvd.init()
        pipe = Client(str(folder / "ranks"))
        pipe.send((rank, os.getpid()))
        serve(pipe, f"{__package__}.scenarios", rank, world_size)
        status = 0
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stderr.flush()
        os._exit(status)  # not back into the loop of the process that was forked


if __name__ == "__main__":
    main(sys.argv[1])
    os._exit(0)  # an orderly exit unloads torch, which takes seconds
