"""Shaped links between network namespaces, on the real kernel."""

import os
import shutil
import signal
import subprocess
import sys
import time
from contextlib import closing
from pathlib import Path

import pytest

from benches.harness import link as links
from benches.harness.link import LinkUnavailableError, NamespaceLink
from benches.harness.processes import ROOT

SBIN = os.pathsep.join([os.environ.get("PATH", os.defpath), "/usr/sbin", "/sbin"])


def _why_no_namespaces() -> str | None:
    """Return why this machine or user can have no links, found out without the code under test."""
    if not sys.platform.startswith("linux"):
        return "network namespaces are a Linux feature"
    for tool in ("ip", "tc", "unshare", "nsenter"):
        if shutil.which(tool, path=SBIN) is None:
            return f"{tool} is not installed"
    shape = (
        "ip link add name one type veth peer name two && "
        "tc qdisc add dev one root tbf rate 1mbit burst 4kb latency 50ms"
    )
    complaint = ""
    for user in ([], ["--user", "--map-root-user"]):
        done = subprocess.run(
            ["unshare", *user, "--net", "sh", "-c", shape],
            env=os.environ | {"PATH": SBIN},
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode == 0:
            return None
        complaint = done.stderr.strip()
    # Anything but a refusal is a mistake somewhere, and must not hide as a skip.
    refused = any(word in complaint for word in ("permitted", "denied", "upported", "Unknown"))
    return f"this user may not make and shape links here: {complaint}" if refused else None


WHY_NOT = _why_no_namespaces()
needs_namespaces = pytest.mark.skipif(WHY_NOT is not None, reason=str(WHY_NOT))


def devices() -> set[str]:
    """Return the names of the network devices of this process's own namespace."""
    lines = Path("/proc/self/net/dev").read_text(encoding="ascii").splitlines()[2:]
    return {line.partition(":")[0].strip() for line in lines}


def holders(link: NamespaceLink) -> list[int]:
    """Return the processes that hold the link's namespaces open."""
    return [space.pid for space in [*link._spaces, *([link._switch] if link._switch else [])]]


def wait_until_gone(pids: list[int]) -> None:
    """Wait for processes to end, which takes their namespaces and devices along."""
    end = time.monotonic() + 10
    while alive := [pid for pid in pids if Path(f"/proc/{pid}/ns/net").exists()]:
        assert time.monotonic() < end, f"processes {alive} still hold namespaces"
        time.sleep(0.01)


RECEIVE = """
import socket, sys, time
with socket.create_server((sys.argv[1], 0)) as server:
    print(server.getsockname()[1], flush=True)
    stream, _ = server.accept()
begin, count = time.perf_counter(), 0
while size := len(stream.recv(65536)):
    count += size
print(8 * count / (time.perf_counter() - begin))
"""
SEND = """
import socket, sys
with socket.create_connection((sys.argv[1], int(sys.argv[2]))) as stream:
    stream.sendall(bytes(int(sys.argv[3])))
"""


def stream(link: NamespaceLink, source: int, sink: int, nbytes: int) -> float:
    """Return the bits per second at which one rank sends bytes to another."""
    listen = [*link.command_prefix(sink), sys.executable, "-c", RECEIVE, link.address(sink)]
    with subprocess.Popen(listen, stdout=subprocess.PIPE, text=True) as receiver:
        assert receiver.stdout is not None
        port = receiver.stdout.readline().strip()
        send = [*link.command_prefix(source), sys.executable, "-c", SEND, link.address(sink)]
        subprocess.run([*send, port, str(nbytes)], check=True, timeout=60)
        return float(receiver.stdout.readline())


@needs_namespaces
def test_both_directions_have_the_rate_that_was_set_last():
    with closing(NamespaceLink(2)) as link:
        for rate in (40_000_000, 10_000_000):
            link.set_rate(rate)
            for source, sink in ((0, 1), (1, 0)):
                # The bucket can only hold a stream back, so nothing but a missing one is too fast.
                assert 0.5 * rate < stream(link, source, sink, rate // 16) < 1.15 * rate


@needs_namespaces
@pytest.mark.parametrize("ranks", [2, 3])
def test_nothing_is_seen_outside_and_nothing_stays(ranks):
    before = devices()
    with closing(NamespaceLink(ranks)) as link:
        pids = holders(link)
        assert len(pids) == (2 if ranks == 2 else 4)
        own = os.readlink("/proc/self/ns/net")
        inside = {os.readlink(f"/proc/{pid}/ns/net") for pid in pids}
        assert len(inside) == len(pids)
        assert own not in inside
        assert devices() == before
    wait_until_gone(pids)
    assert devices() == before
    link.close()  # once more does no harm


@needs_namespaces
@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM])
def test_a_killed_owner_leaves_nothing_behind(how):
    code = (
        "import sys, time\n"
        "from benches.harness.link import NamespaceLink\n"
        "link = NamespaceLink(3)\n"
        "print(*(space.pid for space in [*link._spaces, link._switch]), flush=True)\n"
        "time.sleep(60)\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code], cwd=ROOT, stdout=subprocess.PIPE, text=True
    ) as owner:
        assert owner.stdout is not None
        pids = [int(pid) for pid in owner.stdout.readline().split()]
        assert len(pids) == 4
        owner.send_signal(how)
    wait_until_gone(pids)


def test_without_the_tools_the_link_is_loopback_and_says_why(monkeypatch):
    monkeypatch.setattr(links.shutil, "which", lambda tool, path: None)
    link, why = links.open_link(2)
    assert type(link) is links.Link
    if sys.platform.startswith("linux"):
        assert why == "the commands of iproute2 and util-linux are not installed"
    assert (link.shaped, link.address(1), link.command_prefix(1)) == (False, "127.0.0.1", [])
    with pytest.raises(LinkUnavailableError, match="belongs to the whole machine"):
        link.set_rate(1_000_000)
