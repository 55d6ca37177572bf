"""A connection to a store, in its own thread, so that a dead host blocks nobody for long."""

import ipaddress
import queue
import socket
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from concurrent.futures import TimeoutError as Late
from datetime import timedelta
from typing import Any, TypeVar

from gradwire.torch.errors import MembershipError
from gradwire.torch.transport import Store, stores

T = TypeVar("T")
Connect = Callable[[timedelta], Store]

_EXPECTED = 'store must be "host:port" or a store of torch.distributed'


def is_local(host: str) -> bool:
    """Return whether an address is reachable only from this host."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def split(address: str) -> tuple[str, int]:
    """Return host and port; a ValueError if it is not ``host:port``."""
    host, _, port = address.rpartition(":")
    if not host or not port.isdecimal():
        raise ValueError(f"{_EXPECTED}, got {address!r}")
    return host.removeprefix("[").removesuffix("]"), int(port)


def serve_store(host: str, port: int) -> Store:
    """Serve a store at a single address of this host. Port 0 selects any free port.

    Raises a MembershipError if it cannot be served.
    """
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
        family, kind, _, _, there = min(found, key=lambda each: each[0] != socket.AF_INET)
        listener = socket.socket(family, kind)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(there)
        number = listener.getsockname()[1]
        # By itself, torch serves a store at all addresses of the host.
        return stores.TCPStore(
            host,
            number,
            is_master=True,
            wait_for_workers=False,
            master_listen_fd=listener.detach(),
        )
    except (OSError, OverflowError, RuntimeError) as error:
        raise MembershipError(f"the store could not be served at {host}:{port}: {error}") from error


def connector(store: Store | str, *, serve: bool) -> tuple[Connect, Store | None]:
    """Return a function that opens a connection to a store, and the store if served here.

    Raises a TypeError or ValueError for anything but a store or ``host:port``.
    """
    if isinstance(store, str):
        host, port = split(store)
        served = serve_store(host, port) if serve else None
        number = port if served is None else served.port
        return lambda timeout: _client(host, number, timeout), served
    if not isinstance(store, stores.Store):
        raise TypeError(f"{_EXPECTED}, got {type(store).__name__}")
    if serve:
        raise ValueError('serve=True needs store="host:port": a store object is already served')
    given = store
    if isinstance(given, stores.TCPStore):
        return lambda timeout: _client(given.host, given.port, timeout), None
    # One client has one thread at a time, and a wait for others to connect would stop the beats.
    return lambda timeout: given.clone() if hasattr(given, "clone") else given, None


def _client(host: str, port: int, timeout: timedelta) -> Store:
    return stores.TCPStore(host, port, is_master=False, wait_for_workers=False, timeout=timeout)


class StoreClient:
    """Calls a store from one thread, regularly and on request, and reconnects when needed.

    All times are in seconds. `timeout` is that of a call, and `interval` from one beat to the next:
    then `beat` is called with the store. A call had no answer if the store is `lost`.
    """

    def __init__(
        self, connect: Connect, timeout: float, interval: float, beat: Callable[[Store], Any]
    ) -> None:
        self._connect = connect
        self._timeout = timeout
        self._interval = interval
        self._beat = beat
        self._store: Store | None = None
        self._ended = False
        self.lost = False
        # A finalizer may end a link in any thread, also in the middle of a call of this queue: of
        # all queues, only this one can be filled then.
        self._calls = queue.SimpleQueue[tuple[Callable[[Store], Any], Future[Any]] | None]()
        self._thread = threading.Thread(target=self._run, name="gradwire-members", daemon=True)
        self._thread.start()

    def call(self, act: Callable[[Store], T]) -> T:
        """Return the result of a call with the store; raise a MembershipError after the timeout."""
        answer: Future[T] = Future()
        self._calls.put((act, answer))
        try:
            return answer.result(self._timeout)
        except Late:
            self.lost = True
            raise MembershipError(
                f"the store of the members did not answer for {self._timeout:g} seconds: without "
                "it, no rank knows who trains. Restart it, and resume from a checkpoint"
            ) from None

    def store(self) -> Store:
        """Open another connection, for the caller's exclusive use."""
        return self.call(lambda _: self._connect(timedelta(seconds=self._timeout)))

    def end(self, act: Callable[[Store], Any] | None = None) -> None:
        """End the thread after pending calls and a last one, without waiting.

        The result of the last call is dropped. Any thread may call this at any time, including the
        garbage collector. A second call has no effect.
        """
        if not self._ended:
            self._ended = True
            if act is not None:
                self._calls.put((act, Future()))
            self._calls.put(None)

    def join(self, limit: float) -> bool:
        """Wait for the thread to end; return whether it has. A dead host delays it.

        The thread itself does not wait.
        """
        if threading.current_thread() is not self._thread:
            self._thread.join(limit)
        return not self._thread.is_alive()

    def _run(self) -> None:
        due = time.monotonic()
        while True:
            try:
                call = self._calls.get(timeout=max(due - time.monotonic(), 0.0))
            except queue.Empty:
                due = time.monotonic() + self._interval
                self._try(self._beat, Future())
                continue
            if call is None:
                self._store = None
                return
            self._answer(*call)
            del call  # what the caller has is not this thread's to keep until the next call

    def _answer(self, act: Callable[[Store], Any], answer: Future[Any]) -> None:
        deadline = time.monotonic() + self._timeout
        while not self._try(act, answer) and time.monotonic() < deadline:
            time.sleep(min(0.5, self._timeout / 10))

    def _try(self, act: Callable[[Store], Any], answer: Future[Any]) -> bool:
        """Call once; return whether the store has answered."""
        try:
            if self._store is None:
                self._store = self._connect(timedelta(seconds=self._timeout))
            answer.set_result(act(self._store))
        except Exception as error:
            if isinstance(error, RuntimeError) and not isinstance(error, MembershipError):
                self._store = None  # the connection is lost, or the host
                return False
            answer.set_exception(error)  # what the caller is to be told
        return True
