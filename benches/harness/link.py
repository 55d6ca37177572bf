"""Links between the ranks: the loopback device, or network namespaces and shaped veth pairs.

Two ranks get a namespace each, joined by one veth pair; more ranks are connected to a bridge in a
namespace of its own. A token bucket on both ends of every pair shapes both directions, so that each
rank has a full-duplex link.

The kernel cleans up. The namespaces have no names: each is held open by a process that reads its
standard input, a pipe whose other end only this process holds. When this process ends, even by
SIGKILL, the pipe closes and the holder exits; with the last process of a namespace the kernel
removes the namespace and all its devices. Nothing is left to clean up, two demos cannot collide,
and nothing outside the new namespaces is touched: not even a device name appears there.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys

DEVICE = "gw0"  # the name of a rank's own end, inside its namespace
SUBNET = "198.18.0"  # RFC 2544: addresses set aside for benchmarks; routed nowhere
MAX_RANKS = 16

TOOLS = {"ip": "iproute2", "tc": "iproute2", "unshare": "util-linux", "nsenter": "util-linux"}
# ip and tc are in sbin directories, which are often missing from a user's PATH.
PATH = os.pathsep.join([os.environ.get("PATH", os.defpath), "/usr/sbin", "/sbin"])

# tbf sends a burst at full speed. Limiting it to a quarter of a millisecond keeps small frames from
# looking too fast; with less than two full packets tbf does not reach the rate.
BURST_SECONDS = 0.00025
MIN_BURST_BYTES = 4096


class LinkUnavailableError(RuntimeError):
    """A shaped link is not possible on this machine or for this user; the message says why."""


class Link:
    """All ranks on the machine's own loopback device, at whatever speed that has."""

    shaped = False
    interface = "lo" if sys.platform.startswith("linux") else "lo0"

    def command_prefix(self, rank: int) -> list[str]:
        """Return the prefix that makes a command run in the rank's network namespace."""
        return []

    def address(self, rank: int) -> str:
        return "127.0.0.1"

    def set_rate(self, bits_per_second: int) -> None:
        """Shape both directions of the link to this rate."""
        raise LinkUnavailableError(
            "the loopback device is never shaped: it belongs to the whole machine"
        )

    def close(self) -> None:
        """Remove everything. Idempotent."""


def open_link(ranks: int) -> tuple[Link, str | None]:
    """Return a shaped link and None, or the loopback device and the reason for it."""
    try:
        return NamespaceLink(ranks), None
    except LinkUnavailableError as error:
        return Link(), str(error)


class _Namespace:
    """One network namespace, open while its holder runs; with ``user``, in a user namespace."""

    def __init__(self, owner: _Namespace | None, *, user: bool) -> None:
        self._user = ["--user", "--preserve-credentials"] if user else []
        hold = ["unshare", "--net", "--", "/bin/sh", "-c", "echo ready; exec cat >/dev/null"]
        if user and owner is None:
            hold[1:1] = ["--user", "--map-root-user"]
        elif user and owner is not None:
            hold[:0] = ["nsenter", f"--target={owner.pid}", *self._user, "--"]
        # A new session, so that Ctrl-C in the terminal reaches only the command, which then cleans
        # up in order.
        self.process = subprocess.Popen(
            hold,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        self.pid: int = self.process.pid
        assert self.process.stdout is not None
        if self.process.stdout.readline().strip() != "ready":
            _, complaint = self.process.communicate()
            raise LinkUnavailableError(complaint.strip() or "unshare created no network namespace")

    def enter(self) -> list[str]:
        """Return the prefix that runs a command in this namespace."""
        return ["nsenter", f"--target={self.pid}", *self._user, "--net", "--"]

    def run(self, *command: str) -> None:
        done = subprocess.run(
            [*self.enter(), *command], env=os.environ | {"PATH": PATH}, capture_output=True,
            text=True, stdin=subprocess.DEVNULL, timeout=30, check=False,
        )  # fmt: skip
        if done.returncode:
            complaint = (done.stderr or done.stdout).strip() or f"exit status {done.returncode}"
            raise LinkUnavailableError(f"{' '.join(command)}: {complaint}")

    def close(self) -> None:
        for pipe in (self.process.stdin, self.process.stdout, self.process.stderr):
            if pipe is not None and not pipe.closed:
                pipe.close()
        try:
            self.process.wait(timeout=2)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()


def _require_tools() -> None:
    if not sys.platform.startswith("linux"):
        raise LinkUnavailableError(f"network namespaces need Linux, and this is {sys.platform}")
    missing = {each for tool, each in TOOLS.items() if shutil.which(tool, path=PATH) is None}
    if missing:
        named = " and ".join(sorted(missing))
        raise LinkUnavailableError(f"the commands of {named} are not installed")


class NamespaceLink(Link):
    """2 to 16 ranks in separate namespaces, joined by shaped veth pairs.

    Raises LinkUnavailableError if that is not possible here. Nothing is left behind.
    """

    shaped, interface = True, DEVICE

    def __init__(self, ranks: int) -> None:
        if not 2 <= ranks <= MAX_RANKS:
            raise ValueError(f"a link joins 2 to {MAX_RANKS} ranks, not {ranks}")
        self.ranks = ranks
        self._spaces: list[_Namespace] = []
        self._switch: _Namespace | None = None
        _require_tools()
        try:
            self._open()
            # Detect a kernel without tbf now, not after a minute of training.
            self.set_rate(1_000_000_000)
        except BaseException:
            self.close()
            raise

    def _open(self) -> None:
        user = False
        try:
            owner = _Namespace(None, user=user)
        except LinkUnavailableError:  # not root
            owner = _Namespace(None, user=(user := True))
        self._spaces.append(owner)
        self._spaces.extend(_Namespace(owner, user=user) for _ in range(self.ranks - 1))
        if self.ranks == 2:
            self._pair(owner, self._spaces[1], DEVICE)
        else:
            self._switch = _Namespace(owner, user=user)
            self._switch.run("ip", "link", "add", "switch", "type", "bridge")
            self._switch.run("ip", "link", "set", "switch", "up")
            for rank, space in enumerate(self._spaces):
                self._pair(space, self._switch, f"port{rank}")
                self._switch.run("ip", "link", "set", f"port{rank}", "master", "switch", "up")
        for rank, space in enumerate(self._spaces):
            space.run("ip", "link", "set", "lo", "up")
            space.run("ip", "address", "add", f"{self.address(rank)}/24", "dev", DEVICE)
            space.run("ip", "link", "set", DEVICE, "up")

    def _pair(self, here: _Namespace, there: _Namespace, there_name: str) -> None:
        """Create a veth pair with one end in each namespace, and in no other."""
        ends = [DEVICE, "type", "veth", "peer", "name", there_name, "netns", str(there.pid)]
        here.run("ip", "link", "add", *ends)

    def command_prefix(self, rank: int) -> list[str]:
        return self._spaces[rank].enter()

    def address(self, rank: int) -> str:
        return f"{SUBNET}.{rank + 1}"

    def set_rate(self, bits_per_second: int) -> None:
        ends = [(space, DEVICE) for space in self._spaces]
        if self._switch is not None:
            ends += [(self._switch, f"port{rank}") for rank in range(self.ranks)]
        burst = max(MIN_BURST_BYTES, round(bits_per_second / 8 * BURST_SECONDS))
        rate = f"rate {bits_per_second}bit burst {burst}b latency 50ms"
        shape = f"root tbf {rate}".split()
        for space, device in ends:
            space.run("tc", "qdisc", "replace", "dev", device, *shape)

    def close(self) -> None:
        spaces = [*self._spaces, *([self._switch] if self._switch else [])]
        self._spaces, self._switch = [], None
        for space in spaces:
            space.close()
