"""Measure a link: the speed of a TCP stream, and the bytes that an interface sends."""

import socket
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

_WARM_UP = 0.05  # seconds until the token bucket is empty and the congestion window open
_PATIENCE = 30.0  # seconds to wait for the other end


def one_way(
    rank: int, ends: tuple[int, int], address: str, seconds: float, tell: Callable[[Any, int], Any]
) -> float:
    """Return the bits per second of a TCP stream from one rank to another. A collective.

    Parameters
    ----------
    rank : int
        This rank.
    ends : tuple of int
        The rank that sends and the one that receives; all others wait.
    address : str
        Address of this rank.
    seconds : float
        Duration of the transfer.
    tell : callable
        Returns the value of the rank, both its arguments, on every rank.
    """
    source, sink = ends
    rate = 0.0
    if rank == sink:
        with socket.create_server((address, 0)) as server:
            server.settimeout(_PATIENCE)
            tell(server.getsockname(), sink)
            rate = _receive(server.accept()[0])
    else:
        there = tell(None, sink)
        if rank == source:
            _send(tuple(there), seconds)
    return float(tell(rate, sink))


def _send(there: tuple[str, int], seconds: float) -> None:
    chunk = bytes(1 << 16)
    with socket.create_connection(there, timeout=_PATIENCE) as stream:
        end = time.perf_counter() + seconds
        while time.perf_counter() < end:
            stream.sendall(chunk)


def _receive(stream: socket.socket) -> float:
    stream.settimeout(_PATIENCE)
    buffer = bytearray(1 << 18)
    count, begin = 0, None
    with stream:
        first = last = time.perf_counter()
        while size := stream.recv_into(buffer):
            last = time.perf_counter()
            if begin is not None:
                count += size
            elif last - first > _WARM_UP:
                begin = last
    return 8 * count / (last - begin) if begin is not None and last > begin else 0.0


def sent_bytes(interface: str) -> int | None:
    """Return the bytes that an interface in this network namespace has sent, or None if unknown."""
    try:
        lines = Path("/proc/self/net/dev").read_text(encoding="ascii").splitlines()
    except OSError:
        return None
    for line in lines:
        name, _, counters = line.partition(":")
        if name.strip() == interface:
            return int(counters.split()[8])
    return None
