"""The ranks that train together: a process group, or members that join and leave."""

import contextlib
import itertools
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from datetime import timedelta
from typing import Any

import torch.distributed as dist

from gradwire.torch.checkpoint.format import Policy
from gradwire.torch.collective import connect, group_of
from gradwire.torch.diloco.checkpoint import load
from gradwire.torch.diloco.exchanges import FragmentExchanges
from gradwire.torch.diloco.membership import Membership
from gradwire.torch.diloco.recovery import RankReport, RecoveryPlan, decide
from gradwire.torch.diloco.replica import Replica
from gradwire.torch.diloco.roster import Generation, Waiting
from gradwire.torch.diloco.untrained import broadcast
from gradwire.torch.engine.consensus import ControlChannel, agree
from gradwire.torch.engine.engine import Engine
from gradwire.torch.errors import ExchangeError, MembershipError, TensorError
from gradwire.torch.transport import Channel, ProcessGroups
from gradwire.torch.transport.store import Gloo, stores

_ATTEMPTS = 10  # generations in a row that may fail before all is ready: more are no accident
# Generations of which ranks know what counted: one that was away for longer sends it again.
_KEPT = 64


class ElasticRanks:
    """Members registered in a store, with a new engine after every change. Creating one joins.

    `generation` is the last one in which this rank had the shared state of its `members`, 0 if
    none. Raises a MembershipError if there is no generation that this rank can join.
    """

    def __init__(
        self, membership: Membership, replica: Replica, state_dict: Mapping[str, Any] | None
    ) -> None:
        self._membership = membership
        self._replica = replica
        self._restored = state_dict is not None
        self._settings = {
            what: json.dumps(value, sort_keys=True) for what, value in replica.settings.items()
        }
        self.generation = self._settled = 0
        self.members: tuple[str, ...] = ()
        self._valid = True
        self._counted: dict[int, int] = {}
        self._failure: TensorError | None = None
        # By itself at first, to load what nobody else is concerned with.
        alone = Gloo(stores.HashStore(), 0, 1, membership.timeout, host="127.0.0.1")
        self.flights = FragmentExchanges(replica, connect(alone, replica.like))
        with contextlib.ExitStack() as undo:
            undo.callback(lambda: self.flights.engine.abandon())
            if state_dict is not None:
                load(replica, self.flights, state_dict, "own")
            number = membership.begin()
            undo.callback(membership.leave)
            if state_dict is None:
                replica.start(number)
                replica.untrained.begin()
            self.join_generation()
            undo.pop_all()

    def advance(self) -> None:
        """Make the exchanges that are due, with the ranks that are present."""
        for failed in itertools.count(1):
            try:
                more = True
                while more:
                    # Others are about to come or go, or have gone on without this rank.
                    if self.flights.due or self._membership.outdated():
                        self.join_generation()
                    more = self.flights.advance()
                return
            except MembershipError:
                raise
            except ExchangeError as error:
                if error.rank == self.flights.engine.rank or failed == _ATTEMPTS:
                    raise  # it is this rank that fails, or all of them whoever takes part
            self.join_generation()

    def load(self, *_: object) -> None:
        """Raise: elastic ranks cannot agree on a checkpoint after the start."""
        raise ValueError("with a membership, each rank passes its own: DiLoCo(..., state_dict=)")

    def leave(self) -> None:
        self._membership.leave()

    def join_generation(self) -> None:
        """Join the next generation once it is complete, and get its shared state.

        Raises a TensorError for a non-finite exchange that other ranks detected before.
        """
        self.flights.wait_and_disconnect()
        engine, confirm = self._connect_generation()
        self._membership.reached()
        self.flights.connect(engine, confirm, self._membership.wanted)
        failure, self._failure = self._failure, None
        if failure is not None:
            raise failure

    def _connect_generation(self) -> tuple[Engine, ControlChannel]:
        """Return the engine of a new generation, once its ranks have the same state."""
        trained = self.generation > 0 or self._restored
        failed, reached = 0, tuple[str, ...]()
        for attempt in itertools.count(1):
            waiting = Waiting(self.generation, failed, trained, reached)
            formed = self._membership.form(waiting, self._settings)
            transport = formed.transport()
            engine: Engine | None = None
            try:
                engine = connect(transport, self._replica.like)
                confirm = ControlChannel(transport.make())
                with engine.control.act("members") as channel:
                    self._agree_on_state(channel, formed)
                return engine, confirm
            except BaseException as error:
                if engine is None:
                    transport.leave()
                else:
                    engine.abandon()
                gone = isinstance(error, RuntimeError) and not isinstance(error, MembershipError)
                if not gone or attempt == _ATTEMPTS:
                    raise
                failed, reached = 0, ()
                if not transport.connected:
                    failed, reached = formed.generation, formed.reachable()
        raise AssertionError("unreachable")

    def _agree_on_state(self, channel: Channel, formed: Generation) -> None:
        """Bring this rank to the state of all ranks. It can be repeated after a failure."""
        replica, flights = self._replica, self.flights
        mine = RankReport(
            held=self.generation,
            size=len(self.members),
            valid=self._valid,
            restored=self._restored,
            position=dict(replica.position),
            settled=self._settled,
            arrived=flights.arrived,
            bits=replica.bits(() if self.generation else flights.means()),
            counted=self._counted,
            steps=replica.steps(),
        )
        every = [RankReport.read(report) for report in channel.all_gather_object(asdict(mine))]
        plan = decide(every, trained=formed.trained)
        if channel.rank in plan.keep:
            failure = flights.catch_up(plan.position["applied"], plan.position["sent"])
            self._failure = failure or self._failure
        else:
            flights.take_back(plan.counted.get(self.generation, 0))
        if len(plan.keep) < channel.size:
            self._broadcast_state(channel, plan)
        channel.all_gather_object(None)  # every rank has everything: from here it counts
        flights.make_final()
        replica.set_encode_counts([report.steps for report in every])
        self.generation, self.members = formed.generation, formed.members
        self._settled = plan.position["sent"]
        self._counted = dict(list(plan.counted.items())[-_KEPT:])
        self._valid = True

    def _broadcast_state(self, channel: Channel, plan: RecoveryPlan) -> None:
        """Broadcast the shared state to the ranks that do not have it."""
        replica, flights = self._replica, self.flights
        new = channel.rank not in plan.keep
        if new:
            self._valid = False
            flights.receive(plan.finite)
            replica.position.update(plan.position)
        begins = new and self.generation == 0 and not self._restored
        replica.untrained.align(channel, plan.source, frozen=new, buffers=begins)
        broadcast(channel, [*replica.shared(), *flights.means()], plan.source)
        if begins:
            replica.untrained.begin()
        flights.align(channel, plan.source, new=new)
        if new:
            flights.restore()


class StaticRanks:
    """The ranks of a process group, which have no names. Creating one is a collective.

    All start with the state of rank 0. Raises a ValueError if their settings differ.
    """

    members: tuple[str, ...] = ()
    generation = 0

    def __init__(
        self, replica: Replica, process_group: dist.ProcessGroup | None, timeout: timedelta | None
    ) -> None:
        self._replica = replica
        engine = connect(ProcessGroups(group_of(process_group), timeout), replica.like)
        try:
            with engine.control.act("DiLoCo()") as channel:
                agree(channel, "made a DiLoCo", replica.settings)
                broadcast(channel, replica.shared(), 0)
                replica.untrained.align(channel, 0, frozen=True, buffers=True)
        except BaseException:
            engine.abandon()
            raise
        replica.start(engine.rank)
        replica.untrained.begin()
        self.flights = FragmentExchanges(replica, engine)
        self.flights.restore()

    def advance(self) -> None:
        while self.flights.advance():
            pass

    def load(
        self, state_dict: Mapping[str, Any] | Sequence[Mapping[str, Any]], policy: Policy
    ) -> None:
        """Wait for exchanges in progress, then restore a checkpoint. A collective."""
        self.flights.wait_for_all()
        load(self._replica, self.flights, state_dict, policy)

    def leave(self) -> None:
        """Do nothing: nobody waits for this rank."""
