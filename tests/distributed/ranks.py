"""Real ranks for tests: processes that stay up and run one scenario after another.

Importing torch costs seconds, so one process imports it, and every rank is forked from there; and
one set of ranks serves many tests.

A test marked `on` is its own body: it runs on every rank, asserts there, and fetches by `together`
what the other ranks have found::

    @on("two")
    def test_replicas_are_equal(rank, size, tmp_path):
        ...
        assert len(set(together(fingerprint(model)))) == 1

Where a test compares sets of ranks, or some are to fail, it calls `Ranks.run` or `Ranks.try_run`
with a function of its file, or with a scenario: a function `module.function` under `scenarios/`,
called as ``function(rank, world_size, **arguments)``. What it returns on each rank comes back as a
list.
"""

import contextlib
import importlib
import inspect
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, Protocol

from tests.deadlines import expires, stretched

ROOT = Path(__file__).parents[2]
START = 240.0
"""Seconds in which a process has to have called."""


INJECTED = ("rank", "size")
"""Parameters of a body that each rank fills in."""


def on(fixture: str, *, limit: float = 240.0) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Run a test on every rank of a fixture, with its other arguments and fixtures.

    These go through a pipe: they are values, not objects that only this process has.
    """

    def decorate(body: Callable[..., Any]) -> Callable[..., Any]:
        def test(**arguments: Any) -> None:
            ranks: Ranks = arguments[fixture]
            ranks.run(body, limit=limit, **{name: arguments[name] for name in names})

        names = [each for each in inspect.signature(body).parameters if each not in INJECTED]
        test.__name__, test.__qualname__ = body.__name__, body.__qualname__
        test.__module__, test.__doc__ = body.__module__, body.__doc__
        test.__dict__.update(body.__dict__, body=body)
        by_name = inspect.Parameter.KEYWORD_ONLY
        test.__signature__ = inspect.Signature(  # type: ignore[attr-defined]
            [inspect.Parameter(name, by_name) for name in dict.fromkeys([fixture, *names])]
        )
        return test

    return decorate


def together(value: Any) -> list[Any]:
    """On a rank: return what each rank has given, in their order."""
    import torch.distributed as dist  # the process of pytest may have no torch

    if not dist.is_initialized():
        return list(sys.modules["horovod.torch"].allgather_object(value))
    every = [None] * dist.get_world_size()
    dist.all_gather_object(every, value)
    return every


def alike(value: Any) -> Any:
    """On a rank: return the value, which all ranks have to have found."""
    every = together(value)
    assert all(each == every[0] for each in every), every
    return value


class LazyModule:
    """A module that is imported once it is used: by ranks, which have what it imports.

    The process of pytest only collects their tests, and importing a framework takes seconds.
    """

    def __init__(self, name: str) -> None:
        self._name = name

    def __getattr__(self, attribute: str) -> Any:
        if attribute.startswith(("_", "pytest")):  # pytest asks, whatever there is in a module
            raise AttributeError(attribute)
        return getattr(importlib.import_module(self._name), attribute)


class RanksFailed(Exception):
    """A scenario raised, died or hung on some rank; the message shows every rank's log."""


class Origin(Protocol):
    """Where ranks come from."""

    path: Path

    def fork(
        self, world_size: int, timeout: float, backend: str, transport: str
    ) -> tuple[Path, list[int], list[Connection]]:
        """Start a set of ranks; return their folder, process ids and pipes."""

    def signal(self, pid: int, number: int) -> None:
        """Send a signal to a rank, if it is still there."""


class Nursery:
    """The process that has torch imported, and forks ranks.

    Parameters
    ----------
    scenarios : str
        The package whose modules have the scenarios.
    *imports : str
        What else is imported before the forks.
    """

    def __init__(self, scenarios: str = "tests.distributed.scenarios", *imports: str) -> None:
        self._directory = tempfile.TemporaryDirectory(prefix="gradwire-ranks-")
        self.path = Path(self._directory.name)
        self._sets = 0
        with listening(self.path / "nursery") as listener, (self.path / "log").open("wb") as log:
            self._process = subprocess.Popen(
                [
                    *(sys.executable, "-m", "tests.distributed.nursery"),
                    *(str(self.path / "nursery"), scenarios, *imports),
                ],
                cwd=ROOT,
                stdin=subprocess.DEVNULL,
                stderr=log,
                env={
                    **os.environ,
                    "GLOO_SOCKET_IFNAME": "lo",
                    "OMP_NUM_THREADS": "1",
                    "OPENBLAS_NUM_THREADS": "1",  # no threads before the fork
                    "PYTORCH_NVML_BASED_CUDA_CHECK": "1",  # nor a driver that was asked for GPUs
                },
            )
            self._pipe = self._accept(listener)

    def fork(
        self, world_size: int, timeout: float, backend: str, transport: str
    ) -> tuple[Path, list[int], list[Connection]]:
        """Start a set of ranks; return their folder, process ids and pipes."""
        self._sets += 1
        folder = self.path / str(self._sets)
        folder.mkdir()
        pids, pipes = [], []
        with listening(folder / "ranks") as listener:
            for rank in range(world_size):
                self._pipe.send((rank, world_size, timeout, str(folder), backend, transport))
                pids.append(self._pipe.recv())
                pipes.append(self._accept(listener))  # one after the other: in the order of ranks
        return folder, pids, pipes

    def _accept(self, listener: socket.socket) -> Connection:
        began = time.monotonic()
        while self._process.poll() is None and not expires(began, START):
            with contextlib.suppress(TimeoutError):
                return Connection(listener.accept()[0].detach())
        self._process.kill()
        log = self.path / "log"
        raise RanksFailed(f"no process called; ended: {self._process.wait()}\n{log.read_text()}")

    def signal(self, pid: int, number: int) -> None:
        """Send a signal to a rank; its id is its own even when it has ended."""
        os.kill(pid, number)

    def stop(self) -> None:
        """End the process. Its ranks end with their pipes."""
        self._pipe.close()
        self._process.kill()  # an orderly exit unloads torch, which takes seconds
        self._process.wait()
        self._directory.cleanup()


def named(what: Any) -> str:
    """Return the name by which a rank finds a function."""
    return what if isinstance(what, str) else f"{what.__module__}.{what.__qualname__}"


def listening(path: Path) -> socket.socket:
    """Return a socket on which processes call; whoever accepts waits for a moment."""
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(str(path))
    listener.listen()
    listener.settimeout(0.2)
    return listener


class Ranks:
    """A set of processes in one process group.

    Parameters
    ----------
    world_size : int
    timeout : float
        Seconds after which collectives give up; more on a busy machine.
    backend : str
        What encodes tensors on the CPU: with ``"host"``, as if they lay on another device; with
        ``"cuda"``, as if on a GPU, by the emulated kernels.
    transport : str
        The backend of the process group. With ``"carrier"``, frames stay where tensors are.
    """

    def __init__(
        self,
        nursery: Origin,
        world_size: int,
        timeout: float = 120.0,
        backend: str = "cpu",
        transport: str = "gloo",
    ) -> None:
        self.world_size = world_size
        self._nursery = nursery
        self._timeout = timeout
        self._backend = backend
        self._transport = transport
        self._pids: list[int] = []
        self._pipes: list[Connection] = []
        self._folder = nursery.path

    def run(self, what: Any, /, *, limit: float = 240.0, **arguments: Any) -> list[Any]:
        """Run a scenario or a body on all ranks, and return what it returned on each.

        Raises
        ------
        RanksFailed
            Any rank raised, died, or took longer than ``limit`` seconds.
        """
        outcomes = self.try_run(what, limit=limit, **arguments)
        if all(kind == "returned" for kind, _ in outcomes):
            return [value for _, value in outcomes]
        report = [
            f"--- rank {rank}: {named(what)} {kind} ---\n{value}\n{self.log(rank)}"
            for rank, (kind, value) in enumerate(outcomes)
        ]
        self.stop()  # whatever they are doing, they are no longer in step
        raise RanksFailed("\n\n".join(report))

    def try_run(
        self, what: Any, /, *, limit: float = 240.0, **arguments: Any
    ) -> list[tuple[str, Any]]:
        """Run a scenario; each rank's outcome is "returned", "raised", "died" or "hung"."""
        if not self._pipes:
            self._folder, self._pids, self._pipes = self._nursery.fork(
                self.world_size, stretched(self._timeout), self._backend, self._transport
            )
        for pipe in self._pipes:
            pipe.send((named(what), arguments))
        began = time.monotonic()
        try:
            return [self._answer(rank, began, limit) for rank in range(self.world_size)]
        except BaseException:  # an answer that cannot be read, or Ctrl-C: they are out of step
            self.stop()
            raise

    def stop(self) -> None:
        """End the processes; the next scenario starts new ones."""
        for pipe, pid in zip(self._pipes, self._pids, strict=True):
            self._nursery.signal(pid, signal.SIGKILL)
            pipe.close()
        self._pids, self._pipes = [], []

    def _answer(self, rank: int, began: float, limit: float) -> tuple[str, Any]:
        pipe = self._pipes[rank]
        try:
            while not (there := pipe.poll(1.0)) and not expires(began, limit):
                pass
            if there:
                kind, value = pipe.recv()
                return kind, value
        except (EOFError, ConnectionResetError):
            return "died", ""
        self._nursery.signal(
            self._pids[rank], signal.SIGUSR1
        )  # faulthandler: where does every thread stand?
        time.sleep(0.5)
        return "hung", ""

    def log(self, rank: int) -> str:
        """Return the end of what a rank has printed: if it hung, where its threads stood."""
        return (self._folder / f"rank{rank}.log").read_text(errors="replace")[-6000:]
