"""Start the rank processes, one by one."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

from benches.harness.link import Link

__all__ = ["ROOT", "RankError", "Start", "Started", "end", "keep_log", "start", "variables"]

ROOT = Path(__file__).resolve().parents[2]
"""Where ranks run: they find ``benches`` there, from wherever the command was called."""


class RankError(RuntimeError):
    """A rank failed; the message is meant for the user."""


@dataclass(frozen=True)
class Started:
    """A rank.

    Attributes
    ----------
    commands, events : text streams
        Of JSON lines.
    process : subprocess.Popen
        The rank, or what has started it and ends when it ends.
    log : deque of str
        Its last output.
    """

    commands: IO[str]
    events: IO[str]
    process: subprocess.Popen[str]
    log: deque[str] = field(default_factory=lambda: deque(maxlen=40))


Start = Callable[[Link, list[dict[str, Any]]], Iterator[Started]]
"""Starts a rank for each set-up."""


def variables(setup: dict[str, Any]) -> dict[str, str]:
    """Return the environment of a rank."""
    return os.environ | {
        "GLOO_SOCKET_IFNAME": setup["interface"],
        "OMP_NUM_THREADS": str(setup["threads"]),
        "CUDA_VISIBLE_DEVICES": "",  # the ranks use the CPU; looking for GPUs takes time
    }


def start(link: Link, setups: list[dict[str, Any]]) -> Iterator[Started]:
    """Start a process for each rank, in the rank's namespace."""
    for setup in setups:
        yield _start(link.command_prefix(setup["rank"]), {**setup, "horovodrun": False})


def _start(prefix: list[str], setup: dict[str, Any]) -> Started:
    process = subprocess.Popen(
        [*prefix, sys.executable, "-m", f"{__package__}.rank_process", json.dumps(setup)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        encoding="utf-8",
        env=variables(setup),
        cwd=ROOT,
        start_new_session=True,  # Ctrl-C reaches only the command, which then ends the ranks
    )
    assert process.stdin is not None
    assert process.stdout is not None
    assert process.stderr is not None
    made = Started(process.stdin, process.stdout, process)
    threading.Thread(target=keep_log, args=(process.stderr, made.log.append), daemon=True).start()
    return made


def end(process: subprocess.Popen[str]) -> None:
    """Wait for a process whose ranks have been told to end, and end it if that takes long."""
    try:
        process.wait(timeout=5)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def keep_log(stream: IO[str], keep: Callable[[str], None]) -> None:
    """Keep the lines of a stream until it ends."""
    for line in stream:
        keep(line.rstrip())
