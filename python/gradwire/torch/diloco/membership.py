"""Ranks that join and leave: they agree, through a store, on who trains together."""

import atexit
import logging
import os
import secrets
import socket
import time
import weakref
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from datetime import timedelta
from functools import partial

from gradwire import _validate
from gradwire._validate import require
from gradwire.torch.diloco.roster import Generation, Roster, Waiting
from gradwire.torch.diloco.store_client import Heartbeat, StoreClient, connector, is_local, split
from gradwire.torch.errors import MembershipError
from gradwire.torch.transport.store import Secret, Store, stores

LOG = logging.getLogger("gradwire.diloco")

_REFUSED = 2  # times that a rank which reaches the store, but not the other ranks, is left out
_LAST = 5.0  # seconds to leave in, at the end of the program
_CLOSING = 1.0  # seconds to wait for the end of the link's thread
# A variable of the environment, which other users of a host do not see, as they see arguments.
_TOKEN = "GRADWIRE_DILOCO_TOKEN"
_LEAST = 16  # characters of a token: who reads the store can try short ones
_UNTOLD = "left without a word to the others: %s"


class Membership:
    """Lets ranks join and leave, for `DiLoCo(..., membership=)`. Each process makes its own.

    The roster, a numbered generation of ranks, is kept in a torch.distributed store. When a
    rank is lost, the others continue without it in a new generation; new ranks are admitted after
    the next exchange. The first change of the roster wins, so if the network is split in two, only
    one side continues.

    Parameters
    ----------
    store : str or torch.distributed.Store
        ``"host:port"`` of a store, as ``python -m gradwire.torch.diloco PORT`` serves it; or a
        store. A `torch.distributed.FileStore` is for tests and for runs that nobody kills: a
        process killed while it writes damages the file.
    serve : bool
        Serve the store in this process, at this host and port, and at no other address. It ends
        with the process, and then nobody can leave or join: use it where this process outlives the
        others.
    token : str, optional
        A secret shared by all ranks: at least 16 characters that nobody can guess. Defaults to the
        environment variable ``GRADWIRE_DILOCO_TOKEN``. Ranks then accept only entries written by
        ranks with the token, and train only with those. It is required unless the store is at a
        loopback address, or was given as an object.
    name : str
        Name of the run. Runs with different names in the same store are independent.
    timeout : datetime.timedelta
        How long to wait for other ranks in an exchange, and again for them to form the next
        generation. A rank whose process has stopped is given up after a third of this time.
    min_size : int
        With fewer ranks than this, the remaining ranks wait for others; also at the start.
    patience : datetime.timedelta
        How long to wait for enough ranks, and to be admitted.

    Raises
    ------
    TypeError, ValueError
        An argument is invalid.
    MembershipError
        The store could not be served.
    """

    def __init__(
        self,
        store: str | Store,
        *,
        serve: bool = False,
        token: str | None = None,
        name: str = "diloco",
        timeout: timedelta = timedelta(seconds=60),
        min_size: int = 1,
        patience: timedelta = timedelta(minutes=30),
    ) -> None:
        named = isinstance(name, str) and name
        require(named, "name must be the name of the run, got {!r}", name)
        for what, value in (("timeout", timeout), ("patience", patience)):
            long = isinstance(value, timedelta) and value >= timedelta(seconds=1)
            require(long, "{} must be a timedelta of at least a second, got {!r}", what, value)
        self.timeout = timeout
        self.min_size = _validate.integer("min_size", min_size, low=1)
        self.name = f"{socket.gethostname()}-{os.getpid()}-{secrets.token_hex(3)}"
        self._patience = patience.total_seconds()
        secret = _secret(token, store)
        # Whoever connects is taken for a rank then, so that nobody else is to reach it.
        self._host = split(store)[0] if secret is None and isinstance(store, str) else None
        self._secret = None if secret is None else secret.of("gradwire.diloco", name)
        connect, self._served = connector(store, serve=serve)
        self._connect = lambda limit: stores.PrefixStore(f"gradwire/{name}", connect(limit))
        self._watch = Heartbeat(self.name, timeout.total_seconds(), self._secret)
        self._link: StoreClient | None = None
        self._generation = 0
        self._refused = 0
        self._begun = False

    # Between generations ----------------------------------------------------------------------

    def begin(self) -> int:
        """Connect to the store; return a number that no other rank of the run was given.

        Raises a MembershipError if it does not answer, or has entries not signed with this token.
        """
        require(not self._begun, "a Membership is for one DiLoCo: make another one")
        self._begun = True
        watch = self._watch
        link = StoreClient(self._connect, watch.timeout, watch.interval, watch.beat_and_read)
        self._link = link
        # With this object, or this process, ends what others would wait for.
        self._end = weakref.finalize(self, _leave_when_collected, link, watch)
        self._end.atexit = False
        self._last = partial(_last, link, watch, os.getpid())
        atexit.register(self._last)
        try:
            return self._change(lambda roster: replace(roster, ranks=roster.ranks + 1)).ranks
        except BaseException:
            self.leave()
            raise

    def form(self, waiting: Waiting, settings: Mapping[str, str]) -> Generation:
        """Wait for the next generation with this rank in it. All members have the same settings.

        Raises a ValueError if the members have other settings, and a MembershipError if the store
        does not answer, there are too few ranks, the members do not admit this rank, or it cannot
        reach them.
        """
        watch = self._watch
        began = asked = close = time.monotonic()
        failed = waiting.failed
        self._ask(waiting, settings)
        said = WaitLog(watch, self.min_size, waiting.trained, began)
        while True:
            roster = self._open.call(watch.beat_and_read)
            if roster.generation > self._generation and self.name in roster.members:
                return self._generation_of(roster)
            if self.name not in roster.waiting:  # a generation without this rank
                self._refused = self._refused + 1 if failed else 0
                if self._refused == _REFUSED:
                    self.leave()
                    raise MembershipError(
                        "this rank can reach the store, but not the other ranks, which continue "
                        "without it: set GLOO_SOCKET_IFNAME to a network that connects them"
                    )
                failed, asked = 0, time.monotonic()
                self._ask(waiting.without_failure(), settings)
            elif chosen := self._complete(roster, time.monotonic() - asked):
                self._open.call(
                    partial(watch.replace, old=roster, new=roster.with_generation(chosen))
                )
                continue
            elif not roster.is_split(watch.alive(roster.waiting), self.min_size):
                failed, close = roster.waiting[self.name].failed, time.monotonic()
            elif time.monotonic() - close > watch.timeout:  # whoever reaches whom was long ago
                self._open.call(partial(watch.replace, old=roster, new=roster.without_failures()))
                continue
            said.waiting(roster)
            if time.monotonic() - began > self._patience:
                self.leave()
                raise MembershipError(
                    f"gave up after {self._patience:g} seconds of {said.situation(roster)[1]}"
                )
            time.sleep(min(watch.interval, 0.2))

    def reached(self) -> None:
        """Record that the ranks of this generation reach each other."""
        self._refused = 0

    def _ask(self, waiting: Waiting, settings: Mapping[str, str]) -> None:
        self._change(lambda roster: roster.with_waiting(self.name, waiting, settings))

    def _change(self, act: Callable[[Roster], Roster]) -> Roster:
        return self._open.call(partial(self._watch.change, act=act))

    def _complete(self, roster: Roster, waited: float) -> list[str]:
        """Return the members of the next generation; none if this rank cannot decide it now."""
        watch = self._watch
        alive = watch.alive(roster.waiting)
        if roster.members and not any(rank in alive for rank in roster.members):
            # Their parameters are newer. They stop once they have not seen the store for so long.
            if any(watch.silent(rank) <= 2 * watch.timeout for rank in roster.members):
                return []
            if not any(roster.waiting[rank].trained for rank in alive):
                return []  # a member that was only suspended still has all of the training
        elif roster.members:
            missing = [rank for rank in roster.members if rank not in roster.waiting]
            awaited = watch.alive(missing) and waited < watch.timeout
            if self.name not in roster.members or awaited:
                return []
        chosen = roster.next_members(alive)
        return chosen if self.name in chosen and len(chosen) >= self.min_size else []

    def _generation_of(self, roster: Roster) -> Generation:
        self._generation = generation = roster.generation
        link, secret, members = self._open, self._secret, roster.members
        LOG.info("generation %d: %s", generation, ", ".join(members))
        return Generation(
            generation,
            members.index(self.name),
            members,
            roster.trained,
            connect=lambda: stores.PrefixStore(f"generation/{generation}", link.store()),
            timeout=self.timeout,
            secret=None if secret is None else secret.of("generation", generation, *members),
            host=self._host,
        )

    # While training ---------------------------------------------------------------------------

    def outdated(self) -> bool:
        """Return whether a newer generation than this rank's exists or is about to.

        Asks the store if it has been silent for the timeout: no answer is a MembershipError.
        """
        watch = self._watch
        if watch.age > watch.timeout:
            self._open.call(watch.beat_and_read)
        roster = watch.roster
        return (
            roster.generation != self._generation
            or self.name not in roster.members
            or any(rank in roster.waiting for rank in roster.members)
        )

    def wanted(self) -> bool:
        """Return whether ranks that are alive wait to be admitted."""
        watch, roster = self._watch, self._watch.roster
        alive = watch.alive(roster.waiting)
        return any(rank not in roster.members and watch.beats(rank) for rank in alive)

    def leave(self) -> None:
        """Leave the ranks, so that none of them waits for this one."""
        if self._link is None:
            return
        link, self._link = self._link, None
        self._end.detach()
        atexit.unregister(self._last)
        try:
            if not link.lost:
                link.call(partial(_without, self._watch))
        except MembershipError as error:
            LOG.warning(_UNTOLD, error)
        link.end()
        link.join(_CLOSING)

    @property
    def _open(self) -> StoreClient:
        if self._link is None:
            raise MembershipError("this rank has left: make another Membership and DiLoCo")
        return self._link


def _secret(token: str | None, store: object) -> Secret | None:
    """Return the secret of a token, given or in the environment; None if none is needed."""
    make = 'python -c "import secrets; print(secrets.token_hex())" makes one'
    token = os.environ.get(_TOKEN) if token is None else token
    if token is None:
        require(
            not isinstance(store, str) or is_local(split(store)[0]),
            "others may reach a store at {}: give all ranks the same token, with the environment "
            "variable {} or token=; {}",
            *(store, _TOKEN, make),
        )
        return None
    facts = (_LEAST, len(token), make)
    require(len(token) >= _LEAST, "token must have at least {} characters, got {}; {}", *facts)
    return Secret(token.encode())


def _without(watch: Heartbeat, store: Store) -> Roster:
    return watch.change(store, lambda roster: roster.without(watch.name))


def _leave_when_collected(link: StoreClient, watch: Heartbeat) -> None:
    """Leave when the object is collected, without waiting: this may be the client's thread."""
    link.end(None if link.lost else partial(_without, watch))


def _last(link: StoreClient, watch: Heartbeat, process: int) -> None:
    """Leave at the end of the program if `leave` was not called, as after an error."""
    if os.getpid() == process:  # and not in a process that was forked
        _leave_when_collected(link, watch)
        if not link.join(_CLOSING if link.lost else _LAST) and not link.lost:
            LOG.warning(_UNTOLD, f"the store did not answer within {_LAST:g} seconds")


@dataclass(slots=True)
class WaitLog:
    """Logs what this rank waits for: an info message if that is usual, else a warning."""

    watch: Heartbeat
    min_size: int
    trained: bool  # this rank has shared parameters
    began: float  # to wait, by the monotonic clock
    _last: str = ""

    def waiting(self, roster: Roster) -> None:
        """Log the situation, unless it was logged last."""
        unusual, text = self.situation(roster)
        # By then, others that run have shown a sign of life.
        early = time.monotonic() - self.began < 2 * self.watch.interval + 1.0
        if text == self._last or (unusual and early):
            return
        self._last = text
        LOG.log(logging.WARNING if unusual else logging.INFO, "%s", text)

    def situation(self, roster: Roster) -> tuple[bool, str]:
        """Return whether to warn, and what this rank waits for."""
        watch, size = self.watch, self.min_size
        names = [rank for rank in roster.members or roster.waiting if rank != watch.name]
        others = ", ".join(names)
        if roster.members and watch.name not in roster.members:
            if any(watch.beats(rank) for rank in watch.alive(names)):
                return False, f"waiting for {others} to admit this rank after their next exchange"
            then = (
                f"After {2 * watch.timeout:g} seconds without one, this rank continues alone from "
                "its checkpoint"
                if self.trained
                else "They may only be suspended and still hold the trained parameters, so this "
                "rank does not start over. If they have ended, use another name=, or pass a "
                "checkpoint as state_dict="
            )
            text = f"waiting for {others}, the members of this run, which show no sign of life in "
            return True, f"{text}the store. {then}"
        alive = watch.alive(roster.waiting)
        if len(alive) < size:
            return True, f"waiting for more ranks: there are {len(alive)}, and min_size={size}"
        if roster.is_split(alive, size):
            return True, (
                f"waiting until ranks reach each other: of {', '.join(alive)}, fewer than "
                f"min_size={size} do. All of them connect again after {watch.timeout:g} seconds; "
                "name a network that connects them by GLOO_SOCKET_IFNAME"
            )
        return False, f"waiting for {others} to form the next generation"
