"""The processes of ranks, joined by a link: start, commands, events, end.

Each rank runs `benches.harness.rank_process`, which takes commands as JSON lines on its standard
input and writes events as JSON lines. A module of the program says what the commands are.
"""

import contextlib
import json
import os
import queue
import subprocess
import sys
import tempfile
import threading
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import IO, Any, Self

from benches.harness.link import Link, open_link

ROOT = Path(__file__).resolve().parents[2]
"""Where ranks run: they find ``benches`` there, from wherever the command was called."""

SILENCE = 180.0  # seconds without an event from any rank that count as a failure
UNSHAPED = 200_000_000_000
"""Bits per second that no link reaches."""


class RankError(RuntimeError):
    """A rank failed; the message is meant for the user."""


@dataclass(frozen=True)
class Started:
    """The process of a rank, whose standard streams are JSON lines, and its last output."""

    process: subprocess.Popen[str]
    log: deque[str] = field(default_factory=lambda: deque(maxlen=40))

    @property
    def commands(self) -> IO[str]:
        assert self.process.stdin is not None
        return self.process.stdin

    def keep_log(self) -> None:
        """Keep the last lines of standard error until it ends."""
        assert self.process.stderr is not None
        for line in self.process.stderr:
            self.log.append(line.rstrip())


def start(link: Link, setup: dict[str, Any]) -> Started:
    """Start the process of a rank, in the rank's namespace."""
    environment = os.environ | {
        "GLOO_SOCKET_IFNAME": setup["interface"],
        "OMP_NUM_THREADS": str(setup["threads"]),
        "CUDA_VISIBLE_DEVICES": "",  # the ranks use the CPU; looking for GPUs takes time
    }
    rank = [sys.executable, "-m", f"{__package__}.rank_process", json.dumps(setup)]
    process = subprocess.Popen(
        [*link.command_prefix(setup["rank"]), *rank],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        encoding="utf-8",
        env=environment,
        cwd=ROOT,
        start_new_session=True,  # Ctrl-C reaches only the command, which then ends the ranks
    )
    made = Started(process)
    threading.Thread(target=made.keep_log, daemon=True).start()
    return made


class Ranks:
    """The rank processes, as a context manager that ends them on exit.

    ``join(setup, say)`` of the module joins the other ranks and returns an object whose methods are
    the commands. ``say(event, **fields)`` sends an event; what a command returns is one, too. After
    so many seconds of silence of all ranks they count as failed. Options become part of the set-up.
    """

    def __init__(
        self,
        link: Link,
        ranks: int,
        module: str,
        *,
        threads: int = 1,
        silence: float = SILENCE,
        **options: Any,
    ) -> None:
        self._link, self._silence = link, silence
        self._events: queue.Queue[tuple[int, dict[str, Any] | None]] = queue.Queue()
        self._folder = tempfile.TemporaryDirectory(
            prefix="gradwire-bench-", ignore_cleanup_errors=True
        )
        self._started: list[Started] = []
        common = {
            **options,
            "module": module,
            "ranks": ranks,
            "folder": self._folder.name,
            "interface": link.interface,
            "shaped": link.shaped,
            "threads": threads,
        }
        try:
            for rank in range(ranks):
                setup = {"rank": rank, "address": link.address(rank), **common}
                self._started.append(start(link, setup))
        except BaseException:
            self.close()
            raise
        for rank, started in enumerate(self._started):
            threading.Thread(target=self._read_events, args=(rank, started), daemon=True).start()

    def _read_events(self, rank: int, started: Started) -> None:
        assert started.process.stdout is not None
        for line in started.process.stdout:
            self._events.put((rank, json.loads(line)))
        self._events.put((rank, None))

    def shape(self, rate: int | None) -> None:
        """Shape the link to so many bits per second; None takes the limit away.

        Nothing happens on the loopback device.
        """
        if self._link.shaped:
            self._link.set_rate(rate or UNSHAPED)

    def ready(self) -> Any:
        """Wait until all ranks have joined each other; return what the first knows of them."""
        return self._gather("ready")[0]

    def ask(self, tell: Callable[[dict[str, Any]], object] | None = None, **command: Any) -> Any:
        """Have all ranks do something; return their answers, in their order.

        ``do`` names the command. ``tell`` gets the events that come before the answers.
        """
        for rank, started in enumerate(self._started):
            try:
                started.commands.write(json.dumps(command) + "\n")
                started.commands.flush()
            except BrokenPipeError:
                raise self._gone(rank) from None
        return self._gather("answer", tell)

    def _gather(
        self, last: str, tell: Callable[[dict[str, Any]], object] | None = None
    ) -> list[Any]:
        """Return what all ranks say with their event of that name.

        As soon as one of them has ended, whichever it is, that is an error: the others would wait
        for it in a collective until that times out.
        """
        found: dict[int, Any] = {}
        while len(found) < len(self._started):
            try:
                rank, event = self._events.get(timeout=self._silence)
            except queue.Empty:
                raise RankError(
                    f"no event from any rank for {self._silence:.0f} s while waiting for {last!r}"
                ) from None
            if event is None:
                raise self._gone(rank)
            if event["event"] == "error":
                raise RankError(f"rank {rank} failed: {event['message']}\n{event['traceback']}")
            if event["event"] == last:
                found[rank] = event["value"]
            elif tell is not None:
                tell(event)
        return [found[rank] for rank in range(len(found))]

    def _gone(self, rank: int) -> RankError:
        status = self._started[rank].process.wait()
        log = "\n".join(self._started[rank].log)
        return RankError(
            f"rank {rank} ended with status {status}; its last output:\n{log or '(nothing)'}"
        )

    def close(self) -> None:
        for started in self._started:
            with contextlib.suppress(BrokenPipeError):
                started.commands.close()
        for started in self._started:
            try:
                started.process.wait(timeout=5)
            except subprocess.TimeoutExpired:
                started.process.kill()
                started.process.wait()
        self._folder.cleanup()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        where: TracebackType | None,
    ) -> None:
        self.close()


@contextlib.contextmanager
def joined(
    ranks: int, module: str, *, silence: float = 900.0, **options: Any
) -> Iterator[tuple[Ranks, str | None]]:
    """Start so many ranks, of a thread each unless told otherwise, and end them with the block.

    Beside them comes why the link cannot be shaped: the ranks then use the loopback device.
    """
    link, why_not = open_link(ranks)
    with link:
        if link.shaped:
            link.set_rate(UNSHAPED)
        with Ranks(link, ranks, module, silence=silence, **options) as processes:
            processes.ready()
            yield processes, why_not
