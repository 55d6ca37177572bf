"""Runs the example under two of torchrun's agents, one of which is lost, and comes back.

Each agent stands for a machine, ``torchrun --nnodes=1:2``: three ranks as two and one, then two
alone, then three again. Ranks wait at fixed steps until the agents are where the test wants them.
"""

import contextlib
import os
import signal
import sys
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.nn.modules.module as modules
from torch._C._distributed_c10d import TCPStore
from torch.distributed.launcher.api import LaunchConfig, elastic_launch

from gradwire.torch.ddp import Handle
from tests.trainers.example import run_example

LIMIT = 500.0
"""Seconds for all of it."""
RANKS = {"kept": 2, "lost": 1}
"""Of each agent."""
SIZES = {0: 3, 1: 2, 2: 3}
"""Number of ranks with which to train, by the number of checkpoints that are there."""


def work(folder: str, steps: int, agent: str) -> None:
    """Run the example; wait in the 14th backward pass to be killed, and another time for others."""
    signal.signal(signal.SIGTERM, signal.SIG_DFL)  # by which an agent stops its ranks
    there = sorted(Path(folder).glob("*/.metadata"))
    size = int(os.environ["WORLD_SIZE"])
    awaited = size != SIZES[min(len(there), 2)]  # an agent was late: the other one began alone
    passes = 0

    def wait(module: torch.nn.Module, *_: Any) -> None:
        nonlocal passes
        passes += isinstance(module, torch.nn.ReLU)  # in the middle of the model
        if awaited:
            time.sleep(LIMIT)
        if passes == 14 and (agent, len(there)) in (("lost", 0), ("kept", 1)):
            Path(f"{folder}.{agent}").touch()
            time.sleep(LIMIT)

    load = Handle.load_state_dict

    def look(handle: Handle, *given: Any) -> None:
        """Keep what a rank begins with."""
        load(handle, *given)
        name = f"{there[-1].parent.name}-into-{size}-{handle.rank}.pt"
        torch.save(handle.state_dict(), Path(f"{folder}.begun") / name)

    Handle.load_state_dict = look  # type: ignore[method-assign, assignment]
    modules.register_module_full_backward_hook(wait)  # of all modules
    run_example(folder, steps)


def forked(act: Callable[[], None]) -> int:
    """Run this in a process group of its own; return its id."""
    pid = os.fork()
    if pid:
        with contextlib.suppress(OSError):  # it has done so itself
            os.setpgid(pid, pid)
        return pid
    status = 1
    try:
        os.setpgid(0, 0)
        act()
        status = 0
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)


def agent(name: str, port: int, folder: str, steps: int) -> int:
    """Start ``torchrun --nnodes=1:2 --rdzv-backend=c10d``, in a process group of its own."""
    config = LaunchConfig(
        min_nodes=1,
        max_nodes=2,
        nproc_per_node=RANKS[name],
        run_id="nodes",
        rdzv_backend="c10d",
        rdzv_endpoint=f"localhost:{port}",
        # As if the store were on a third machine. An agent is lost if it was silent for 30 seconds.
        rdzv_configs={
            "is_host": False,
            "last_call_timeout": 2,
            "keep_alive_interval": 1,
            "keep_alive_max_attempt": 30,
        },
        max_restarts=3,
        start_method="fork",
        local_addr="localhost",
    )

    def launch() -> None:
        elastic_launch(config, work)(folder, steps, name)

    return forked(launch)


def store() -> tuple[int, int]:
    """Start the process through which the agents meet; return its id and port."""
    read, write = os.pipe()

    def serve() -> None:
        kept = TCPStore("localhost", 0, is_master=True, wait_for_workers=False)
        os.write(write, str(kept.port).encode())
        time.sleep(LIMIT)

    pid = forked(serve)
    os.close(write)
    with open(read) as pipe:
        return pid, int(pipe.read(5))


def main(folder: str) -> None:
    """Lose one of two agents in step 14, and start it again when the other is in step 24."""
    deadline = time.monotonic() + LIMIT
    os.mkdir(f"{folder}.begun")
    keeper, port = store()
    there = [keeper]

    def until(name: str) -> None:
        while not Path(f"{folder}.{name}").exists():
            if time.monotonic() > deadline:
                raise TimeoutError(f"no rank of the agent {name!r} waits in step 14 or 24")
            time.sleep(0.05)

    def ended(pid: int) -> int:
        while not (found := os.waitpid(pid, os.WNOHANG))[0]:
            if time.monotonic() > deadline:
                raise TimeoutError("an agent has not ended")
            time.sleep(0.05)
        there.remove(pid)
        return os.waitstatus_to_exitcode(found[1])

    try:
        kept, lost = (agent(name, port, folder, 40) for name in RANKS)
        there += [kept, lost]
        until("lost")
        os.killpg(lost, signal.SIGKILL)
        statuses = [ended(lost)]
        until("kept")
        back = agent("lost", port, folder, 40)
        there.append(back)
        statuses += [ended(kept), ended(back)]
        print(f"nodes: {statuses}", flush=True)
    finally:
        for pid in there:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(pid, signal.SIGKILL)
