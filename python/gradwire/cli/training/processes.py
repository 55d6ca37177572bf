"""The rank processes as the command sees them: start, commands, events, end."""

from __future__ import annotations

import contextlib
import json
import os
import queue
import subprocess
import sys
import tempfile
import threading
from collections import deque
from collections.abc import Iterator
from types import TracebackType
from typing import Any, Self

from gradwire.cli.training.link import Link
from gradwire.cli.training.machine import threads_per_rank

SILENCE = 180.0  # seconds without an event from any rank that count as a failure


class RankError(RuntimeError):
    """A rank failed; the message is meant for the user."""


class Ranks:
    """The rank processes, as a context manager that ends them on exit."""

    def __init__(self, link: Link, ranks: int) -> None:
        self._events: queue.Queue[tuple[int, dict[str, Any] | None]] = queue.Queue()
        self._folder = tempfile.TemporaryDirectory(
            prefix="gradwire-demo-", ignore_cleanup_errors=True
        )
        self._logs: list[deque[str]] = []
        self._processes: list[subprocess.Popen[str]] = []
        threads = threads_per_rank(ranks)
        try:
            for rank in range(ranks):
                setup = {
                    "rank": rank,
                    "ranks": ranks,
                    "folder": self._folder.name,
                    "interface": link.interface,
                    "address": link.address(rank),
                    "shaped": link.shaped,
                    "threads": threads,
                }
                self._start(link.command_prefix(rank), setup)
        except BaseException:
            self.close()
            raise

    def _start(self, prefix: list[str], setup: dict[str, Any]) -> None:
        environment = os.environ | {
            "GLOO_SOCKET_IFNAME": setup["interface"],
            "OMP_NUM_THREADS": str(setup["threads"]),
            "CUDA_VISIBLE_DEVICES": "",  # the ranks use the CPU; looking for GPUs takes time
        }
        process = subprocess.Popen(
            [*prefix, sys.executable, "-m", f"{__package__}.rank_process", json.dumps(setup)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            encoding="utf-8",
            env=environment,
            start_new_session=True,  # Ctrl-C reaches only the command, which then ends the ranks
        )
        self._processes.append(process)
        self._logs.append(deque(maxlen=40))
        number = setup["rank"]
        threading.Thread(target=self._read_events, args=(number, process), daemon=True).start()
        threading.Thread(target=self._read_log, args=(number, process), daemon=True).start()

    def _read_events(self, rank: int, process: subprocess.Popen[str]) -> None:
        assert process.stdout is not None
        for line in process.stdout:
            self._events.put((rank, json.loads(line)))
        self._events.put((rank, None))

    def _read_log(self, rank: int, process: subprocess.Popen[str]) -> None:
        assert process.stderr is not None
        for line in process.stderr:
            self._logs[rank].append(line.rstrip())

    def send(self, **command: Any) -> None:
        """Send all ranks the same command."""
        for rank, process in enumerate(self._processes):
            assert process.stdin is not None
            try:
                process.stdin.write(json.dumps(command) + "\n")
                process.stdin.flush()
            except BrokenPipeError:
                raise self._gone(rank) from None

    def events(self, last: str) -> Iterator[tuple[int, dict[str, Any]]]:
        """Yield (rank, event) until every rank has sent the event of that name."""
        waiting = set(range(len(self._processes)))
        while waiting:
            try:
                rank, event = self._events.get(timeout=SILENCE)
            except queue.Empty:
                raise RankError(
                    f"no event from any rank for {SILENCE:.0f} s while waiting for {last!r}"
                ) from None
            if event is None:
                raise self._gone(rank)
            if event["event"] == "error":
                raise self._failed(rank, event)
            if event["event"] == last:
                waiting.discard(rank)
            yield rank, event

    def _failed(self, rank: int, event: dict[str, Any]) -> RankError:
        return RankError(f"rank {rank} failed: {event['message']}\n{event['traceback']}")

    def _gone(self, rank: int) -> RankError:
        status = self._processes[rank].wait()
        log = "\n".join(self._logs[rank])
        return RankError(
            f"rank {rank} ended with status {status}; its last output:\n{log or '(nothing)'}"
        )

    def close(self) -> None:
        """End the ranks. Idempotent."""
        for process in self._processes:
            if process.stdin is not None:
                with contextlib.suppress(BrokenPipeError):
                    process.stdin.close()
        for process in self._processes:
            try:
                process.wait(timeout=5)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
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
