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
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, Any

from benches.harness.link import Link, open_link

ROOT = Path(__file__).resolve().parents[2]
"""Where ranks run: they find ``benches`` there, from wherever the command was called."""

SILENCE = 180.0  # seconds without an event from any rank that count as a failure
UNSHAPED = 200_000_000_000
"""Bits per second that no link reaches."""


class RankError(RuntimeError):
    """A rank failed; the message is meant for the user."""


def start(link: Link, setup: dict[str, Any]) -> subprocess.Popen[str]:
    """Start the process of a rank, in the rank's namespace. Its standard error goes to a file."""
    environment = os.environ | {
        "GLOO_SOCKET_IFNAME": setup["interface"],
        "OMP_NUM_THREADS": str(setup["threads"]),
        "CUDA_VISIBLE_DEVICES": "",  # the ranks use the CPU; looking for GPUs takes time
    }
    rank = [sys.executable, "-m", f"{__package__}.rank_process", json.dumps(setup)]
    with Path(setup["log"]).open("w", encoding="utf-8") as log:
        return subprocess.Popen(
            [*link.command_prefix(setup["rank"]), *rank],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
            encoding="utf-8",
            env=environment,
            cwd=ROOT,
            start_new_session=True,  # Ctrl-C reaches only the command, which then ends the ranks
        )


class Ranks:
    """The rank processes, until they are closed.

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
        self._logs = [Path(self._folder.name, f"log-{rank}") for rank in range(ranks)]
        self._processes: list[subprocess.Popen[str]] = []
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
            for rank, log in enumerate(self._logs):
                setup = {"rank": rank, "address": link.address(rank), "log": str(log), **common}
                self._processes.append(start(link, setup))
        except BaseException:
            self.close()
            raise
        for rank, process in enumerate(self._processes):
            threading.Thread(target=self._read, args=(rank, process.stdout), daemon=True).start()

    def _read(self, rank: int, lines: IO[str]) -> None:
        for line in lines:
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
        for rank, process in enumerate(self._processes):
            try:
                print(json.dumps(command), file=process.stdin, flush=True)
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
        while len(found) < len(self._processes):
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
        status = self._processes[rank].wait()
        last = "\n".join(self._logs[rank].read_text("utf-8").splitlines()[-40:])
        return RankError(
            f"rank {rank} ended with status {status}; its last output:\n{last or '(nothing)'}"
        )

    def close(self) -> None:
        for process in self._processes:
            with contextlib.suppress(BrokenPipeError):
                process.stdin.close()  # type: ignore[union-attr]  # a pipe
        for process in self._processes:
            try:
                process.wait(timeout=5)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        self._folder.cleanup()


@contextlib.contextmanager
def joined(
    ranks: int, module: str, *, silence: float = 900.0, **options: Any
) -> Iterator[tuple[Ranks, str | None]]:
    """Start so many ranks, of a thread each unless told otherwise, and end them with the block.

    Beside them comes why the link cannot be shaped: the ranks then use the loopback device.
    """
    link, why_not = open_link(ranks)
    with contextlib.closing(link):
        if link.shaped:
            link.set_rate(UNSHAPED)
        made = Ranks(link, ranks, module, silence=silence, **options)
        with contextlib.closing(made):
            made.ready()
            yield made, why_not
