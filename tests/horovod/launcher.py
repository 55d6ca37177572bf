"""Ranks under real `horovodrun`: those that serve many tests, and a script's that run once.

`HorovodRanks` are `tests.distributed.ranks.Ranks` from another origin, so a test reads the same
for Horovod as for DDP: ``three.run("module.function", argument=1)`` calls the function of
``tests/horovod/scenarios/module.py`` on every rank. Importing torch and Horovod takes four seconds
of CPU, so one process imports them, and what `horovodrun` starts has its ranks forked from there.

`run_script` is for what serving ranks cannot be: a command line as users type it, its exit
status, and what each rank has printed.
"""

import contextlib
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from tests.deadlines import expires, stretched
from tests.distributed.ranks import ROOT, Ranks

HOROVODRUN = Path(sys.executable).with_name("horovodrun")
STAND_IN = Path(__file__).with_name("stand_in.py")
START = 280.0
"""Seconds in which ranks have to have joined each other."""


def command(world_size: int, *options: str) -> list[str]:
    """Return the beginning of a command line for ranks on this machine's loopback device."""
    where = ("--gloo", "--network-interfaces", "lo")
    return [str(HOROVODRUN), "-np", str(world_size), *where, *options, sys.executable]


def variables(timeout: float) -> dict[str, str]:
    """Return the environment of ranks whose collectives give up after so many seconds."""
    return {
        **os.environ,
        "PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")]),
        "OMP_NUM_THREADS": "1",
        "HOROVOD_GLOO_TIMEOUT_SECONDS": str(max(1, round(timeout))),
        "HOROVOD_CYCLE_TIME": "1",  # in ms
        "HOROVOD_DYNAMIC_PROCESS_SETS": "1",
        "CUDA_VISIBLE_DEVICES": "",
    }


class Launcher:
    """Starts sets of ranks, each with a `horovodrun` of its own."""

    def __init__(self) -> None:
        self._directory = tempfile.TemporaryDirectory(prefix="gradwire-horovod-")
        self.path = Path(self._directory.name)
        self._runs: list[subprocess.Popen[bytes]] = []
        self._address = str(self.path / "nursery")
        self._nursery = subprocess.Popen(
            [sys.executable, "-m", "tests.horovod.nursery", self._address],
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=variables(0.0) | {"OPENBLAS_NUM_THREADS": "1"},  # no threads before the fork
        )
        assert self._nursery.stdout is not None
        assert self._nursery.stdout.readline() == b"ready\n"
        self._ranks: dict[int, int] = {}  # process id: a descriptor that is of no other process

    def fork(
        self, world_size: int, timeout: float, backend: str, transport: str
    ) -> tuple[Path, list[int], list[Connection]]:
        """Start a set of ranks; return their folder, process ids and pipes."""
        folder = self.path / str(len(self._runs))
        folder.mkdir()
        with socket.socket(socket.AF_UNIX) as listener, (folder / "log").open("wb") as log:
            listener.bind(str(folder / "ranks"))
            listener.listen(world_size)
            listener.settimeout(0.2)
            run = subprocess.Popen(
                [*command(world_size), str(STAND_IN), self._address, str(folder)],
                cwd=ROOT,
                env=variables(timeout),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
            self._runs.append(run)
            joined: dict[int, tuple[int, Connection]] = {}
            began = time.monotonic()
            while len(joined) < world_size:
                if run.poll() is not None or expires(began, START):
                    end(run)
                    texts = [path.read_text(errors="replace") for path in folder.glob("*log")]
                    raise RuntimeError("the ranks did not start\n" + "\n".join(texts))
                with contextlib.suppress(TimeoutError):
                    pipe = Connection(listener.accept()[0].detach())
                    rank, pid = pipe.recv()
                    joined[rank] = pid, pipe
        pids, pipes = zip(*(joined[rank] for rank in range(world_size)), strict=True)
        self._ranks |= {pid: os.pidfd_open(pid) for pid in pids}
        return folder, list(pids), list(pipes)

    def signal(self, pid: int, number: int) -> None:
        """Send a signal to a rank, if it is still there."""
        with contextlib.suppress(ProcessLookupError):
            signal.pidfd_send_signal(self._ranks[pid], number)

    def stop(self) -> None:
        """End everything that was started."""
        for pid in self._ranks:
            self.signal(pid, signal.SIGKILL)
        for run in self._runs:
            end(run)
        self._nursery.kill()
        self._nursery.wait()
        for descriptor in self._ranks.values():
            os.close(descriptor)
        self._directory.cleanup()


class HorovodRanks(Ranks):
    """A set of ranks, which stand still between scenarios.

    Ranks that have nothing to do still negotiate in every cycle of Horovod, and so would take much
    of the CPU from other tests. The clock goes on while they stand still, and what they then wait
    for has been late since: their transport has to have more time than all tests together.
    """

    def __init__(self, launcher: "Launcher", world_size: int, timeout: float = 7200.0) -> None:
        super().__init__(launcher, world_size, timeout)

    def try_run(
        self, what: Any, /, *, limit: float = 240.0, **arguments: Any
    ) -> list[tuple[str, Any]]:
        """Run a scenario; each rank's outcome is "returned", "raised", "died" or "hung"."""
        self._signal_all(signal.SIGCONT)
        try:
            return super().try_run(what, limit=limit, **arguments)
        finally:
            self._signal_all(signal.SIGSTOP)

    def _signal_all(self, number: int) -> None:
        for pid in self._pids:
            self._nursery.signal(pid, number)


def end(run: "subprocess.Popen[Any]") -> None:
    """End a `horovodrun`, which ends its ranks first."""
    run.terminate()
    try:
        run.wait(15.0)
    except subprocess.TimeoutExpired:
        run.kill()  # the processes between it and its ranks notice, and end the ranks
        run.wait()


@dataclass(frozen=True)
class Finished:
    """What a run of `horovodrun` came to."""

    status: int
    seconds: float
    launcher: str
    ranks: Sequence[str]
    """Standard output and error of each rank."""

    def __str__(self) -> str:
        each = [f"--- rank {rank}\n{text}" for rank, text in enumerate(self.ranks)]
        return "\n".join([f"status {self.status} in {self.seconds:.1f} s", self.launcher, *each])


def run_script(
    folder: Path,
    world_size: int,
    *script: str | Path,
    options: Sequence[str] = (),
    limit: float = 240.0,
    timeout: float = 120.0,
    **environment: str,
) -> Finished:
    """Run ``python *script`` on every rank, to its end.

    Parameters
    ----------
    folder : Path
        Takes the output.
    options : sequence of str
        More options of `horovodrun`.
    limit : float
        Seconds after which everything is ended, with an error.
    timeout : float
        Seconds after which collectives give up.
    environment
        More variables.

    Raises
    ------
    RuntimeError
        It did not end in time; the message has the output.
    """
    kept = folder / "output"
    options = (*options, "--output-filename", str(kept))
    began = time.monotonic()
    with (folder / "launcher").open("wb") as log:
        run = subprocess.Popen(
            [*command(world_size, *options), *map(str, script)],
            cwd=ROOT,
            env=variables(stretched(timeout)) | environment,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
        try:
            run.wait(stretched(limit))
            late = False
        except subprocess.TimeoutExpired:
            late = True
        finally:
            end(run)
    seconds = time.monotonic() - began
    each = [
        "".join(path.read_text(errors="replace") for path in sorted(rank.iterdir()))
        for rank in sorted(kept.glob("rank.*"))
    ]
    said = (folder / "launcher").read_text(errors="replace")
    finished = Finished(run.returncode, seconds, said, each)
    if late:
        raise RuntimeError(f"not finished after {limit} seconds: {finished}")
    return finished
