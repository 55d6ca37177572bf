"""A rank's view of the store: the roster, and which ranks are alive; read in its own thread."""

import ipaddress
import queue
import re
import socket
import threading
import time
from collections.abc import Callable, Iterable
from concurrent.futures import Future
from concurrent.futures import TimeoutError as Late
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any, TypeVar

from gradwire._validate import require
from gradwire.torch.diloco.roster import Roster
from gradwire.torch.errors import MembershipError
from gradwire.torch.transport.store import Secret, Store, stores

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
    require(host and port.isdecimal(), "{}, got {!r}", _EXPECTED, address)
    return host.removeprefix("[").removesuffix("]"), int(port)


def serve_store(host: str, port: int) -> Store:
    """Serve a store at a single address of this host. Port 0 selects any free port.

    Raises a MembershipError if it cannot be served.
    """
    try:
        choices = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
        family, kind, _, _, address = min(choices, key=lambda choice: choice[0] != socket.AF_INET)
        listener = socket.socket(family, kind)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
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
    name = type(store).__name__
    require(isinstance(store, stores.Store), "{}, got {}", _EXPECTED, name, kind=TypeError)
    require(not serve, 'serve=True needs store="host:port": a store object is already served')
    if isinstance(store, stores.TCPStore):
        return lambda timeout: _client(store.host, store.port, timeout), None
    # One client has one thread at a time, and a wait for others to connect would stop the beats.
    return lambda timeout: store.clone() if hasattr(store, "clone") else store, None


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
            self._retry(*call)
            del call  # what the caller has is not this thread's to keep until the next call

    def _retry(self, act: Callable[[Store], Any], answer: Future[Any]) -> None:
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


_ROSTER = "roster"
_NUMBER = re.compile(rb"[0-9]{1,18}")
_UNREADABLE = (
    "the {} of this run in the store cannot be read: {}. It was written by ranks with another "
    "release or token, or by somebody else: give all ranks the same release and token=, and start "
    "again with another name="
)


@dataclass(slots=True)
class _Pulse:
    """The last beat of a rank, when it was seen first, and whether there was one before it."""

    beat: int
    at: float
    again: bool = False


class Heartbeat:
    """Reads the roster regularly, and counts beats: this rank's own and those of others.

    Beats are counted, not timed, so that clocks need not agree: a rank is silent for as long as
    this rank has seen no new beat of it. All times are in seconds. With a secret, only entries that
    are signed with it are accepted. An unreadable entry, or a roster older than the last one seen,
    raises a MembershipError.
    """

    def __init__(self, name: str, timeout: float, secret: Secret | None = None) -> None:
        self.name = name
        self.timeout = timeout
        self.interval = min(timeout / 15, 5.0)  # between looks
        self.silence = timeout / 3  # after which a rank is given up
        self._secret = secret
        self._beats = 0
        self._pulses: dict[str, _Pulse] = {}
        self.roster = Roster()
        self.at: float | None = None

    @property
    def age(self) -> float:
        return float("inf") if self.at is None else time.monotonic() - self.at

    def beat_and_read(self, store: Store) -> Roster:
        """Beat, and read everything."""
        try:
            roster, beats = self._read_all(store)
        except MembershipError:
            self.at = None  # `outdated` then asks the store itself, and raises this error
            raise
        now = time.monotonic()
        if self.at is not None and now - self.at > 3 * self.interval + 1.0:
            self._pulses.clear()  # this process was stopped: it cannot tell who was silent
        for rank, beat in beats.items():
            pulse = self._pulses.get(rank)
            if pulse is None or pulse.beat < beat:
                self._pulses[rank] = _Pulse(beat, now, again=pulse is not None)
        self.at = now
        return roster

    def _read_all(self, store: Store) -> tuple[Roster, dict[str, int]]:
        self._beats += 1
        key = f"beat/{self.name}"
        store.set(key, self._sealed(key, b"%d" % self._beats))
        roster = self._current(store)
        there = {*roster.members, *roster.waiting}
        return roster, {rank: self._beat_of(store, rank) for rank in there}

    def silent(self, name: str) -> float:
        """Return the seconds since the last new beat of a rank; 0 for this rank."""
        pulse = self._pulses.get(name)
        return 0.0 if pulse is None or name == self.name else time.monotonic() - pulse.at

    def beats(self, name: str) -> bool:
        """Return whether this rank saw a new beat, not just one from before it looked."""
        pulse = self._pulses.get(name)
        return name == self.name or (pulse is not None and pulse.again)

    def alive(self, names: Iterable[str]) -> list[str]:
        """Return the ranks that are not given up."""
        return [rank for rank in names if self.silent(rank) < self.silence]

    def change(self, store: Store, act: Callable[[Roster], Roster]) -> Roster:
        """Change the roster, retrying if other ranks change it at the same time."""
        roster = self._current(store)
        while (wanted := act(roster)) != roster:
            current = self.replace(store, roster, wanted)
            if current.by == self.name and current.changes == roster.changes + 1:
                break
            roster = current
        return self.roster

    def replace(self, store: Store, old: Roster, new: Roster) -> Roster:
        """Replace the roster if nobody has changed it, and return what is there now."""
        new = replace(new, changes=old.changes + 1, by=self.name)
        texts = (self._sealed(_ROSTER, roster.text()) for roster in (old, new))
        current = self._read(store.compare_set(_ROSTER, *texts))
        require(
            current != old,  # what a store answers that has none
            "the roster of this run is no longer in the store: somebody has deleted it. Restart "
            "from a checkpoint",
            kind=MembershipError,
        )
        return current

    def _current(self, store: Store) -> Roster:
        """Read the roster; without waiting, return an empty one if there is none."""
        return self._read(store.compare_set(_ROSTER, "", self._sealed(_ROSTER, Roster().text())))

    def _read(self, sealed: bytes) -> Roster:
        """Read the roster; raise for one that is older than the last."""
        try:
            roster = Roster.read(self._verified(_ROSTER, sealed))
        except ValueError as error:
            raise MembershipError(_UNREADABLE.format("roster", error)) from error
        changed, seen = roster != self.roster, self.roster.changes
        require(
            roster.changes > seen or (roster.changes == seen and not (seen and changed)),
            "the roster in the store has {} changes, but this rank has seen {}: the store was "
            "restarted, or an old one was restored. Restart from a checkpoint",
            *(roster.changes, seen),
            kind=MembershipError,
        )
        self.roster = roster
        return roster

    def _beat_of(self, store: Store, name: str) -> int:
        """Return the number of a rank's last beat; 0 if there was none."""
        key = f"beat/{name}"
        if not store.check([key]):
            return 0
        beat = self._verified(key, store.get(key))
        problem = (f"beat of {name}", "it is not a number")
        require(_NUMBER.fullmatch(beat), _UNREADABLE, *problem, kind=MembershipError)
        return int(beat)

    def _sealed(self, key: str, value: bytes) -> str:
        return (value if self._secret is None else self._secret.seal(key, value)).decode()

    def _verified(self, key: str, value: bytes) -> bytes:
        return value if self._secret is None else self._secret.open(key, value)
