"""Start the rank processes with Horovod's own launcher, `horovodrun`.

On a shaped link every rank has a network namespace of its own, which `horovodrun` takes for a host:
it runs in the namespace of rank 0, and reaches the others by a program called ``ssh`` in front of
its ``PATH``, which enters the namespace of that address instead of connecting to it. Each rank is a
host of its own also by name, its address: Horovod 0.28.1 connects the ranks of process sets at what
the name of their host means, not over the interface that was asked for.

Ranks of `horovodrun` have no standard input, so each connects to a socket for its commands and
events.
"""

from __future__ import annotations

import contextlib
import importlib.util
import json
import os
import shlex
import socket
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from benches.harness import rank_process
from benches.harness.link import Link
from benches.harness.processes import ROOT, RankError, Started, end, keep_log, variables

_PATIENCE = 150.0  # seconds for all ranks to connect

_SSH = """\
#!/bin/sh
# What horovodrun calls with: options, a host, options, and one word with a command.
while [ $# -gt 1 ]; do
    case $1 in
        -*) shift 2 ;;
        *) host=$1; shift ;;
    esac
done
case $host in
{cases}
esac
echo "no such rank: $host" >&2
exit 255
"""


def _launcher() -> Path:
    return Path(sys.executable).with_name("horovodrun")


def missing() -> str | None:
    if importlib.util.find_spec("horovod") is None:
        return "Horovod is not installed"
    return None if _launcher().exists() else f"there is no {_launcher()}"


def start(link: Link, setups: list[dict[str, Any]]) -> Iterator[Started]:
    """Start one `horovodrun` with a rank for each set-up; RankError if not all of them connect."""
    folder = Path(setups[0]["folder"])
    log: deque[str] = deque(maxlen=80)
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(folder / "ranks"))
        listener.listen(len(setups))
        listener.settimeout(0.2)
        process = _horovodrun(link, setups, folder)
        assert process.stdout is not None
        reader = threading.Thread(target=keep_log, args=(process.stdout, log.append), daemon=True)
        reader.start()
        try:
            connected = _accept(listener, process, 2 * len(setups), log)
        except BaseException:
            process.terminate()
            end(process)
            raise
    for rank in range(len(setups)):
        # Each has a connection of its own, because closing one is how a rank is told to end.
        with connected[2 * rank] as first, connected[2 * rank + 1] as second:
            commands = first.makefile("w", encoding="utf-8")
            events = second.makefile("r", encoding="utf-8")
        yield Started(commands, events, process, log)


def _horovodrun(link: Link, setups: list[dict[str, Any]], folder: Path) -> subprocess.Popen[str]:
    environment = variables(setups[0])
    own_name: list[str] = []
    if link.shaped:
        own_name = ["unshare", "--uts", "--"]
        hosts = ",".join(f"{setup['address']}:1" for setup in setups)
        environment["PATH"] = f"{_write_ssh(link, setups, folder)}:{environment['PATH']}"
    else:
        hosts = f"localhost:{len(setups)}"
    horovodrun = [str(_launcher()), "--gloo", "--disable-cache", "-np", str(len(setups))]
    where = ["--hosts", hosts, "--network-interfaces", link.interface]
    rank = [*own_name, sys.executable, "-m", f"{__package__}.horovodrun", json.dumps(setups)]
    if own_name:
        rank.append("--own-name")
    return subprocess.Popen(
        [*link.command_prefix(0), *horovodrun, *where, *rank],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        encoding="utf-8",
        errors="replace",
        env=environment,
        cwd=ROOT,
        start_new_session=True,  # Ctrl-C reaches only the command, which then ends the ranks
    )


def _write_ssh(link: Link, setups: list[dict[str, Any]], folder: Path) -> Path:
    """Write the program that enters namespaces, and return its folder."""
    cases = []
    for setup in setups:
        enter = shlex.join(link.command_prefix(setup["rank"], inside=True))
        cases.append(f'    {setup["address"]}) exec {enter} /bin/sh -c "$1" ;;')
    program = folder / "bin" / "ssh"
    program.parent.mkdir()
    program.write_text(_SSH.replace("{cases}", "\n".join(cases)))
    program.chmod(0o700)
    return program.parent


def _accept(
    listener: socket.socket, process: subprocess.Popen[str], number: int, log: deque[str]
) -> dict[int, socket.socket]:
    """Return so many connections by number, which is the first byte that comes."""
    connected: dict[int, socket.socket] = {}
    deadline = time.monotonic() + _PATIENCE
    while len(connected) < number:
        if process.poll() is not None or time.monotonic() > deadline:
            said = "\n".join(log) or "(nothing)"
            raise RankError(f"horovodrun started too few ranks; its last output:\n{said}")
        with contextlib.suppress(TimeoutError):
            connection, _ = listener.accept()
            connection.settimeout(None)
            connected[connection.recv(1)[0]] = connection
    return connected


def be_rank(setups: list[dict[str, Any]], *, own_name: bool) -> None:
    """Connect standard input and output to the command, and be a rank.

    With ``own_name``, this process has a UTS namespace to itself, in which it names the host.
    """
    setup = setups[int(os.environ["HOROVOD_RANK"])]
    if own_name:
        socket.sethostname(setup["address"])
    for stream in (0, 1):
        with socket.socket(socket.AF_UNIX) as connection:
            connection.connect(str(Path(setup["folder"], "ranks")))
            connection.sendall(bytes([2 * setup["rank"] + stream]))
            os.dup2(connection.fileno(), stream)
    rank_process.main(setup)


if __name__ == "__main__":
    be_rank(json.loads(sys.argv[1]), own_name="--own-name" in sys.argv[2:])
