"""The rank processes as the command sees them: start, commands, events, end."""

from __future__ import annotations

import contextlib
import json
import queue
import tempfile
import threading
from collections.abc import Callable, Iterator
from types import TracebackType
from typing import Any, Self

from benches.harness.link import Link
from benches.harness.machine import threads_per_rank, versions
from benches.harness.starting import RankError, Start, Started, end, start

__all__ = ["RankError", "Ranks"]

SILENCE = 180.0  # seconds without an event from any rank that count as a failure


class Ranks:
    """The rank processes, as a context manager that ends them on exit."""

    def __init__(self, link: Link, ranks: int, start: Start = start) -> None:
        self._events: queue.Queue[tuple[int, dict[str, Any] | None]] = queue.Queue()
        self._folder = tempfile.TemporaryDirectory(
            prefix="gradwire-demo-", ignore_cleanup_errors=True
        )
        self._started: list[Started] = []
        common = {
            "ranks": ranks,
            "folder": self._folder.name,
            "interface": link.interface,
            "shaped": link.shaped,
            "threads": threads_per_rank(ranks),
        }
        setups = [{"rank": rank, "address": link.address(rank), **common} for rank in range(ranks)]
        try:
            for started in start(link, setups):
                self._started.append(started)
        except BaseException:
            self.close()
            raise
        for rank, started in enumerate(self._started):
            threading.Thread(target=self._read_events, args=(rank, started), daemon=True).start()

    def _read_events(self, rank: int, started: Started) -> None:
        with contextlib.suppress(ConnectionResetError):
            for line in started.events:
                self._events.put((rank, json.loads(line)))
        self._events.put((rank, None))

    def send(self, **command: Any) -> None:
        """Send all ranks the same command."""
        for rank, started in enumerate(self._started):
            try:
                started.commands.write(json.dumps(command) + "\n")
                started.commands.flush()
            except BrokenPipeError:
                raise self._gone(rank) from None

    def events(self, last: str) -> Iterator[tuple[int, dict[str, Any]]]:
        """Yield (rank, event) until every rank has sent the event of that name."""
        waiting = set(range(len(self._started)))
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

    def versions(self) -> dict[str, str]:
        """Wait until all ranks have joined each other; return the versions in use."""
        found = versions()
        for _, event in self.events("ready"):
            found |= event["versions"]
        return found

    def train(
        self, advance: Callable[[int, float], object] | None = None, **what: Any
    ) -> dict[str, Any]:
        """Train once, and return the record of rank 0; see `benches.harness.ranks.Rank.train`.

        ``advance`` is called with a step and its loss a few times a second.
        """
        self.send(do="train", **what)
        record: dict[str, Any] = {}
        for rank, event in self.events("trained"):
            if event["event"] == "step" and advance is not None:
                advance(event["step"], event["loss"])
            elif event["event"] == "trained" and rank == 0:
                record = event["record"]
        return record

    def _failed(self, rank: int, event: dict[str, Any]) -> RankError:
        return RankError(f"rank {rank} failed: {event['message']}\n{event['traceback']}")

    def _gone(self, rank: int) -> RankError:
        status = self._started[rank].process.wait()
        log = "\n".join(self._started[rank].log)
        return RankError(
            f"rank {rank} ended with status {status}; its last output:\n{log or '(nothing)'}"
        )

    def close(self) -> None:
        """End the ranks. Idempotent."""
        for started in self._started:
            with contextlib.suppress(BrokenPipeError):
                started.commands.close()
        for process in {started.process for started in self._started}:
            end(process)
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
