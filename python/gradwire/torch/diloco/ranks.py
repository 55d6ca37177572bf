"""The ranks that train together: those of a process group, or members that come and go."""

import itertools
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from gradwire.torch.checkpoint.format import Policy
from gradwire.torch.collective.calls import connect, group_of
from gradwire.torch.diloco.checkpoint import load
from gradwire.torch.diloco.connectivity import reachable
from gradwire.torch.diloco.exchanges import FragmentExchanges
from gradwire.torch.diloco.membership import Generation, Membership
from gradwire.torch.diloco.recovery import RankReport, RecoveryPlan, decide
from gradwire.torch.diloco.replica import Position, Replica
from gradwire.torch.engine.consensus import ControlChannel, agree
from gradwire.torch.engine.engine import Engine
from gradwire.torch.errors import ExchangeError, MembershipError, TensorError
from gradwire.torch.transport import Channel, Gloo, ProcessGroups, stores

__all__ = ["ElasticRanks", "StaticRanks", "broadcast", "join"]

_ATTEMPTS = 10
"""Generations in a row that may fail before all is ready: more are no accident."""

_KEPT = 64
"""Generations of which ranks know what counted: one that was away for longer sends it again."""


class ElasticRanks:
    """Makes a new engine whenever the ranks change. Making one joins them.

    Parameters
    ----------
    membership : Membership
    replica : Replica
    flights : FragmentExchanges
    position : dict
        How far training is; kept up to date.
    restored : bool
        A checkpoint was loaded.

    Attributes
    ----------
    flights : FragmentExchanges
    members : tuple of str
        Their names, in the order of ranks.
    """

    def __init__(
        self,
        membership: Membership,
        replica: Replica,
        flights: FragmentExchanges,
        position: Position,
        *,
        restored: bool,
    ) -> None:
        self._membership = membership
        self._replica = replica
        self.flights = flights
        self._position = position
        self._restored = restored
        self._held = self._size = self._settled = 0
        self._valid = True
        self._fresh = True
        self._counted: dict[int, int] = {}
        self._failure: TensorError | None = None
        self._settings = {
            what: json.dumps(value, sort_keys=True) for what, value in replica.settings.items()
        }
        self.members: tuple[str, ...] = ()
        try:
            number = membership.begin()
            if not restored:
                replica.start(number)
            self.form()
        except BaseException:
            membership.leave()
            raise

    @property
    def generation(self) -> int:
        """Number of the generation that this rank is in."""
        return self._held

    def guard(self, advance: Callable[[Callable[[], None]], None]) -> None:
        """Have an inner step's exchanges made, with whatever ranks are there.

        Parameters
        ----------
        advance : callable
            Makes what is due, and can be called again; it calls what it is given in between.
        """
        for failed in itertools.count(1):
            try:
                advance(self._look)
                return
            except MembershipError:
                raise
            except ExchangeError as error:
                if error.rank == self.flights.engine.rank or failed == _ATTEMPTS:
                    raise  # it is this rank that fails, or all of them whoever takes part
            self.form()

    def _look(self) -> None:
        """Go on with other ranks if they are about to change, or have changed without this one."""
        if self.flights.due or self._membership.outdated():
            self.form()

    def load(self, *_: object) -> None:
        """Refuse: ranks that come and go have nobody to agree with on a checkpoint later on."""
        raise ValueError("with a membership, each rank gives its own: DiLoCo(..., state_dict=)")

    def leave(self) -> None:
        """Belong to the ranks no longer."""
        self._membership.leave()

    def form(self) -> None:
        """Be in the next generation, whenever it is complete, with what its ranks share.

        Raises
        ------
        MembershipError
            There is none that this rank can be in.
        TensorError
            An exchange was not finite, which others have found before.
        """
        self.flights.land()
        self.flights.engine.abandon()
        engine, confirm = self._formed()
        self._membership.reached()
        self.flights.connect(engine, confirm, self._membership.wanted)
        failure, self._failure = self._failure, None
        if failure is not None:
            raise failure

    def _formed(self) -> tuple[Engine, ControlChannel]:
        """Return what connects the ranks of a new generation, once they all have the same."""
        failed, met = 0, tuple[str, ...]()
        for attempt in itertools.count(1):
            formed = self._membership.form(self._held, failed, self._settings, self._restored, met)
            size, timeout = len(formed.members), self._membership.timeout
            secret, host = formed.secret, formed.host
            transport = Gloo(formed.connect(), formed.rank, size, timeout, secret, host)
            engine: Engine | None = None
            try:
                engine = connect(transport, self._replica.like)
                confirm = ControlChannel(transport.make())
                with engine.control.act("members") as channel:
                    self._settle(channel, formed)
                return engine, confirm
            except BaseException as error:
                if engine is None:
                    transport.leave()
                else:
                    engine.abandon()
                gone = isinstance(error, RuntimeError) and not isinstance(error, MembershipError)
                if not gone or attempt == _ATTEMPTS:
                    raise
                failed, met = 0, ()
                if not transport.connected:
                    failed = formed.generation
                    met = reachable(
                        formed.connect, formed.rank, formed.members, timeout, secret, host
                    )
        raise AssertionError("unreachable")

    def _settle(self, channel: Channel, formed: Generation) -> None:
        """Have the same as all ranks. Whatever fails in between can be done again."""
        every = [
            RankReport.read(each) for each in channel.all_gather_object(asdict(self._report()))
        ]
        plan = decide(every, trained=formed.trained)
        if channel.rank in plan.keep:
            sent = plan.position["sent"]
            failure = self.flights.follow(plan.position["applied"], sent)
            self._failure = failure or self._failure
        else:
            self.flights.take_back(plan.counted.get(self._held, 0))
        if len(plan.keep) < channel.size:
            self._share(channel, plan)
        channel.all_gather_object(None)  # every rank has everything: from here it counts
        self.flights.count()
        self._replica.catch_up([each.steps for each in every])
        self._held, self._size = formed.generation, channel.size
        self._settled = plan.position["sent"]
        self._counted = dict(list(plan.counted.items())[-_KEPT:])
        self._valid, self._fresh = True, False
        self.members = formed.members

    def _report(self) -> RankReport:
        return RankReport(
            held=self._held,
            size=self._size,
            valid=self._valid,
            restored=self._restored,
            position=dict(self._position),
            settled=self._settled,
            arrived=self.flights.arrived,
            bits=self._replica.bits(() if self._held else self.flights.means()),
            counted=self._counted,
            steps=self._replica.steps(),
        )

    def _share(self, channel: Channel, plan: RecoveryPlan) -> None:
        """Give what the ranks share to those that do not have it."""
        replica, flights = self._replica, self.flights
        new = channel.rank not in plan.keep
        if new:
            self._valid = False
            means = flights.receive(plan.finite)
            self._position.update(plan.position)
        else:
            means = flights.means()
        # A rank's own statistics, of BatchNorm for one, are those of the source as it begins.
        takes = new and self._fresh and not self._restored
        buffers = replica.buffers if takes or channel.rank == plan.source else _room(replica)
        broadcast(channel, [*replica.shared(), *means, *buffers], plan.source)
        if new:
            flights.restore()


def _room(replica: Replica) -> list[torch.Tensor]:
    return [each.clone() for each in replica.buffers]


def join(
    membership: Membership,
    replica: Replica,
    position: Position,
    state_dict: Mapping[str, Any] | None,
) -> ElasticRanks:
    """Join the ranks that are there, with what this rank has saved before.

    Raises
    ------
    TypeError, ValueError
        A wrong membership, state or codec.
    MembershipError
        There is no generation that this rank can be in.
    """
    if not isinstance(membership, Membership):
        raise TypeError(f"membership must be a Membership, got {type(membership).__name__}")
    if not replica.codec.memory.undoable:
        raise ValueError(
            f"{replica.codec.memory!r} cannot go back when a rank is lost: use low_memory=False"
        )
    # By itself at first, to load what nobody else is concerned with.
    engine = connect(
        Gloo(stores.HashStore(), 0, 1, membership.timeout, host="127.0.0.1"), replica.like
    )
    flights = FragmentExchanges(replica, position, engine)
    try:
        if state_dict is not None:
            load(replica, flights, position, state_dict, "own")
        restored = state_dict is not None
        return ElasticRanks(membership, replica, flights, position, restored=restored)
    except BaseException:
        engine.abandon()
        raise


class StaticRanks:
    """The ranks of a process group. Making one is a collective: all begin as rank 0.

    Parameters
    ----------
    replica : Replica
    position : dict
        How far training is; kept up to date.
    process_group : torch.distributed.ProcessGroup or None
    timeout : datetime.timedelta or None

    Attributes
    ----------
    flights : FragmentExchanges
    members : tuple of str
        Nobody: these ranks have no names.
    generation : int
        0.

    Raises
    ------
    ValueError
        The ranks have different settings.
    """

    members: tuple[str, ...] = ()
    generation = 0

    def __init__(
        self,
        replica: Replica,
        position: Position,
        process_group: dist.ProcessGroup | None,
        timeout: timedelta | None,
    ) -> None:
        self._replica = replica
        self._position = position
        engine = connect(ProcessGroups(group_of(process_group), timeout), replica.like)
        try:
            with engine.control.act("DiLoCo()") as channel:
                agree(channel, "made a DiLoCo", replica.settings)
                broadcast(channel, [*replica.shared(), *replica.buffers], 0)
        except BaseException:
            engine.abandon()
            raise
        replica.start(engine.rank)
        self.flights = FragmentExchanges(replica, position, engine)
        self.flights.restore()

    def guard(self, advance: Callable[[Callable[[], None]], None]) -> None:
        """Have an inner step's exchanges made."""
        advance(lambda: None)

    def load(
        self, state_dict: Mapping[str, Any] | Sequence[Mapping[str, Any]], policy: Policy
    ) -> None:
        """Restore what was saved, whatever is under way has come to. A collective."""
        self.flights.arrive()
        load(self._replica, self.flights, self._position, state_dict, policy)

    def leave(self) -> None:
        """Return: nobody waits for this rank."""


_PIECE = 1 << 22
"""Bytes of one operation: each has the channel's limit of time, also on a slow link."""


@torch.no_grad()
def broadcast(channel: Channel, tensors: Iterable[torch.Tensor], source: int) -> None:
    """Replace tensors by those of one rank, bit for bit. A collective.

    Parameters
    ----------
    channel : Channel
        A channel in which nothing else is in progress.
    tensors : iterable of torch.Tensor
        Alike on all ranks, of any dtype and on any device.
    source : int
    """
    for each in tensors:
        values = each.detach().cpu().contiguous().reshape(-1)
        for piece in torch.split(values.view(torch.uint8), _PIECE):
            channel.broadcast(piece, source).wait()
        if channel.rank != source:
            each.copy_(values.view(each.shape))
