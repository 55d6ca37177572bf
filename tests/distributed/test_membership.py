"""`gradwire.torch.diloco.Membership`: processes that die, stop for a while, and come."""

import contextlib
import os
import signal
import socket
import stat
import subprocess
import sys
import textwrap
import threading
import time
from datetime import timedelta
from pathlib import Path

import pytest
import torch

from gradwire.torch import diloco
from gradwire.torch.diloco import roster as rosters
from gradwire.torch.diloco.store_client import Heartbeat
from gradwire.torch.errors import ExchangeError, MembershipError, TensorError
from gradwire.torch.transport.store import Gloo, stores
from tests.distributed.ranks import Ranks
from tests.distributed.scenarios.common import reaches
from tests.distributed.sites import LIMIT, STREAMING, Site, members_of, serving

pytestmark = [pytest.mark.timeout(900), pytest.mark.waits]


def same_everywhere(rounds):
    """What ranks share after a round is the same on all that were there."""
    there = {
        number: {each[number] for each in rounds if number in each}
        for number in {number for each in rounds for number in each}
    }
    assert all(len(found) == 1 for found in there.values())
    assert sum(sum(number in each for each in rounds) > 1 for number in there) >= 4


@pytest.fixture
def apart(nursery):
    """Sets of ranks, some of which do not survive the test."""
    made = []

    def make(size):
        made.append(Ranks(nursery, size))
        return made[-1]

    yield make
    for each in made:
        each.stop()


def die(outer):
    """End this process as a power cut does: between two writes to the store, all of which last."""
    outer._ranks._membership._open.call(lambda store: os.kill(os.getpid(), signal.SIGKILL))


def losses(rank, size, folder):
    """Ranks die one after another, each at another moment; the last one goes on alone."""
    site = Site(rank, members_of(folder))
    site.until(lambda: site.outer.world_size == size)
    for lost, moment in ((3, "steps"), (2, "sent"), (1, "received")):
        end = site.outer.rounds + 2
        site.round(end)
        site.step()  # in the middle of a round
        flights = site.outer._flights
        if rank == lost and moment == "steps":
            die(site.outer)
        elif rank == lost and moment == "sent":  # the others have its frames, or a part of them
            flights.engine.exchange.receive = lambda flight: die(site.outer)
        elif rank == lost:  # it has received everything, and the others cannot know
            flights._confirm.compare = lambda name, told: die(site.outer)
        torch.save(change(site), folder / f"{moment}{rank}.pt")
        assert site.outer.rounds == end + 1
        torch.save(site.rounds, folder / f"{rank}.pt")
    site.round(site.outer.rounds + 2)
    site.outer.close()
    return site.rounds


def change(site):
    """Train through the round in which the ranks change, and return what goes in and out."""
    generation, rounds = site.outer.generation, site.outer.rounds
    shared, mass = site.kind("shared"), site.mass()
    own, before = dict(site.model.named_parameters()), {}

    def note(*_):
        for name in mass:
            mass[name] += before[name] - own[name].detach()

    hook = site.optimizer.register_step_post_hook(note)
    deadline = time.monotonic() + LIMIT
    while site.outer.generation == generation or site.outer.rounds == rounds:
        assert time.monotonic() < deadline, "the ranks did not change"
        before.update({name: each.detach().clone() for name, each in own.items()})
        site.step()
    hook.remove()
    size, after = site.outer.world_size, site.kind("shared")
    sent = {name: size * (shared[name] - after[name]) for name in mass}
    return {"size": size, "mass": mass, "left": site.mass(), "sent": sent}


@pytest.mark.full
def test_ranks_that_die_are_left_behind_and_nothing_of_the_others_is_lost(apart, tmp_path):
    outcomes = apart(4).try_run(losses, limit=400.0, folder=tmp_path)
    kinds = [kind for kind, _ in outcomes]
    assert kinds == ["returned", "died", "died", "died"], outcomes
    # The frames of survivors are all that moved what is shared: nothing else left their residuals.
    for moment, size in (("steps", 3), ("sent", 2), ("received", 1)):
        every = [torch.load(tmp_path / f"{moment}{rank}.pt") for rank in range(size)]
        assert {each["size"] for each in every} == {size}
        for name, sent in every[0]["sent"].items():
            mass, left = (sum(each[kind][name] for each in every) for kind in ("mass", "left"))
            assert torch.allclose(mass, left + sent, atol=1e-5), (moment, name)
    others = [torch.load(tmp_path / f"{rank}.pt") for rank in range(3)]
    same_everywhere([outcomes[0][1], *others])


def pauses(rank, size, folder):
    """A rank is stopped for longer than the timeout, and comes back with its residual."""
    pid = folder / "pid"
    site = Site(rank, members_of(folder, timeout=timedelta(seconds=20)), **STREAMING)
    outer = site.outer
    site.until(lambda: outer.world_size == size)
    site.round(outer.rounds + 3)
    if rank == size - 1:
        residual, generation = site.kind("residual"), outer.generation
        (folder / "unfinished").write_text(str(os.getpid()))
        (folder / "unfinished").rename(pid)
        os.kill(os.getpid(), signal.SIGSTOP)
        site.until(lambda: outer.generation != generation)
        assert residual.keys() == site.kind("residual").keys()
        assert outer.generation >= generation + 2
    else:
        site.until(pid.exists)
        site.until(lambda: outer.world_size == size - 1)
        site.round(outer.rounds + 3)
        with contextlib.suppress(OSError):  # the other one may have done it
            os.kill(int(pid.read_text()), signal.SIGCONT)
    site.until(lambda: outer.world_size == size)
    site.round(outer.rounds + 4)
    if rank > 0:  # the first one leaves
        site.until(lambda: outer.world_size == size - 1)
        site.round(outer.rounds + 2)
    outer.close()
    assert rank > 0 or {2, 3} <= set(site.sizes.values())
    return site.rounds


@pytest.mark.full
def test_a_rank_that_stops_for_a_while_comes_back(apart, tmp_path):
    same_everywhere(apart(3).run(pauses, limit=400.0, folder=tmp_path))


def joins(rank, size, folder):
    """A rank joins others that have exchanges under way; a wrong one is refused; all resume."""
    started, late = folder / "started", rank == size - 1
    members = members_of(folder, min_size=size - 1)
    if late:
        assert reaches(started.exists, LIMIT)
        said = "cannot join: its delay is 1, but that of the members is 3"
        with pytest.raises(ValueError, match=said):
            Site(rank, members_of(folder), **STREAMING | {"delay": 1})
        site = Site(rank, members, **STREAMING)
        assert site.outer.rounds >= 5
        assert site.outer.inner_step >= 10
    else:
        site = Site(rank, members, **STREAMING)
        site.round(5)
        started.touch()
        site.until(lambda: site.outer.world_size == size)
    site.round(site.outer.rounds + 3)
    errors = diverges(site, rank == 0)
    assert 1 <= len(errors) <= 2  # one for each fragment that was sent before it is mended
    site.round(site.outer.rounds + 4)
    site.until(lambda: site.outer.inner_step % 4 == 3)  # exchanges are under way
    saved = {"model": site.model.state_dict(), "outer": site.outer.state_dict()}
    resumed = resumes(rank, size, folder, site, saved)
    assert set(site.sizes.values()) == ({3} if late else {2, 3})
    return site.rounds, errors, resumed


def diverges(site, here):
    """Have a parameter diverge on one rank; all get the errors, and go on."""
    if here:
        with torch.no_grad():
            site.model[0].weight[1, 2] = float("inf")
    errors, end = [], site.outer.rounds + 8
    while site.outer.rounds < end:
        try:
            site.round(end)
        except TensorError as error:
            errors.append((error.name, error.rank))
            if here:
                site.outer.restore()
    return errors


def resumes(rank, size, folder, site, saved):
    """End the run, and train on from a checkpoint, in another run of the same ranks."""
    first, inner, residual = site.outer.rounds, site.outer.inner_step, site.kind("residual")
    site.outer.close()
    torch.save(saved, folder / f"{rank}.pt")
    read = torch.load(folder / f"{rank}.pt", weights_only=True)
    again = members_of(folder, name="again", min_size=size)
    other = Site(rank, again, read["model"], state_dict=read["outer"], **STREAMING)
    assert (other.outer.rounds, other.outer.inner_step) == (first, inner)
    kept = other.kind("residual")
    assert all(torch.equal(residual[name], kept[name]) for name in residual)
    other.round(first + 4)
    other.outer.close()
    return [other.rounds[each] for each in range(first + 1, first + 5)]


def test_ranks_join_others_in_the_middle_and_resume_together(apart, tmp_path):
    rounds, errors, resumed = zip(*apart(3).run(joins, limit=400.0, folder=tmp_path), strict=True)
    same_everywhere(rounds)
    assert errors[0] == errors[1] == errors[2]
    assert resumed[0] == resumed[1] == resumed[2]


WHOLE = timedelta(seconds=60)
"""Longer than a busy machine stops ranks between which nothing is cut."""
SOON = 3.0
"""Seconds until a store is given up that is cut off: nothing could be waited for any longer."""
SILENT = "the store of the members did not answer"


class Cable(Gloo):
    """Connects ranks, except to one whose network is cut: what would time out then fails at once.

    Each tells the others through the store, which it reaches nevertheless.
    """

    cut = False

    def make(self, *given):
        told = stores.PrefixStore(f"cable/{len(self._made)}", self._store)
        told.set(str(self._rank), "cut" if Cable.cut else "whole")
        if any(told.get(str(rank)) == b"cut" for rank in range(self._size)):
            raise ExchangeError("the network is cut")
        return super().make(*given)


def give_up_soon(members):
    """Have a membership whose store is gone find that out in little time."""
    members._watch.timeout = members._link._timeout = SOON


def members_in(store):
    """Who the members are, as the store has it."""
    host, _, port = store.rpartition(":")
    client = stores.TCPStore(host, int(port), is_master=False, wait_for_workers=False)
    inside = stores.PrefixStore("gradwire/diloco", client)
    return Heartbeat("nobody", 60.0).change(inside, lambda found: found).members


def hang_up(*ports):
    """Break this process's connections to other processes, except those to some ports."""
    for each in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(OSError):
            if stat.S_ISSOCK(os.fstat(int(each.name)).st_mode):
                with socket.socket(fileno=os.dup(int(each.name))) as one:
                    ends = (one.getsockname(), one.getpeername())
                    if one.family == socket.AF_INET and not {end[1] for end in ends} & {*ports}:
                        one.shutdown(socket.SHUT_RDWR)


class Relay:
    """What stands between a rank and the store, and can be cut."""

    def __init__(self, to):
        host, _, port = to.rpartition(":")
        self._to = host, int(port)
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        self._open = []
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self):
        with contextlib.suppress(OSError):
            while True:
                near, _ = self._listener.accept()
                far = socket.create_connection(self._to)
                self._open += [near, far]
                for one, other in ((near, far), (far, near)):
                    threading.Thread(target=self._copy, args=(one, other), daemon=True).start()

    @staticmethod
    def _copy(one, other):
        with contextlib.suppress(OSError):
            while data := one.recv(1 << 16):
                other.sendall(data)

    def cut(self):
        """Let nothing pass any more."""
        for each in (self._listener, *self._open):
            with contextlib.suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
            each.close()


def all_train(site, size):
    """Train with all ranks for some rounds."""
    site.until(lambda: site.outer.world_size == size, 2 * LIMIT)
    site.round(site.outer.rounds + 3)


def ends_by(site, limit=LIMIT):
    """Train until this rank is alone; return what it says."""
    with pytest.raises(MembershipError) as caught:
        site.until(lambda: False, limit)
    return str(caught.value)


def parted(rank, size, folder):
    """One of three ranks is cut off: first from the others only, then from the store as well.

    It comes back with its checkpoint when the network is whole again.
    """
    rosters.Gloo = Cable
    address = folder / "address"
    with contextlib.ExitStack() as stack:
        if rank == 0:
            server = stack.enter_context(serving(address))
            stack.callback(server.kill)
            stack.callback(reaches, (folder / "done").exists, LIMIT)  # the last one has left
        assert reaches(address.exists, LIMIT)
        store = address.read_text()
        if rank == size - 1:
            return is_cut_off(rank, size, folder, store)
        site = Site(rank, diloco.Membership(store, timeout=WHOLE, min_size=2))
        for part in ("others", "store"):
            all_train(site, size)
            site.until(lambda: site.outer.world_size == 2, 2 * LIMIT)  # the majority goes on
            site.round(site.outer.rounds + 3)
            site.until((folder / part).exists, 2 * LIMIT)
        all_train(site, size)
        site.outer.close()
        # Two of three went on, twice, and took the third in again.
        assert set(site.sizes.values()) == {2, 3}
        return site.rounds


def is_cut_off(rank, size, folder, store):
    """What the one rank does."""
    relay, rounds = Relay(store), {}
    through = f"127.0.0.1:{relay.port}"
    members = diloco.Membership(through, timeout=WHOLE, min_size=2)
    site = Site(rank, members)
    said = {"others": "can reach the store, but not the other ranks", "store": SILENT}
    for part, then in (("others", through), ("store", store)):
        all_train(site, size)
        Cable.cut = True
        if part == "store":
            relay.cut()
            give_up_soon(members)
        hang_up(int(store.rpartition(":")[2]), relay.port)
        assert said[part] in ends_by(site, 2 * LIMIT)
        residual, rounds = site.kind("residual"), {**rounds, **site.rounds}
        saved = {"model": site.model.state_dict(), "outer": site.outer.state_dict()}
        site.outer.close()
        name = members.name
        assert reaches(lambda name=name: name not in members_in(store), 2 * LIMIT)  # left behind
        (folder / part).touch()
        Cable.cut = False
        members = diloco.Membership(then, timeout=WHOLE)
        site = Site(rank, members, saved["model"], state_dict=saved["outer"])
        kept = site.kind("residual")
        assert all(torch.equal(residual[name], each) for name, each in kept.items())
    all_train(site, size)
    site.outer.close()
    (folder / "done").touch()
    return {**rounds, **site.rounds}


def ended(rank, size, folder):
    """The process that serves the store ends: no rank goes on, and each can save."""
    address = folder / "address"
    with contextlib.ExitStack() as stack:
        if rank == 0:
            server = stack.enter_context(serving(address))
            stack.callback(server.kill)
        assert reaches(address.exists, LIMIT)
        members = diloco.Membership(address.read_text(), min_size=2, timeout=WHOLE)
        site = Site(rank, members)
        site.round(3)
        if rank == 0:
            server.kill()
            server.wait()
            (folder / "killed").touch()
        try:
            site.until((folder / "killed").exists)
            give_up_soon(members)
            text = ends_by(site)
        except MembershipError as error:
            text = str(error)
        assert SILENT in text
        assert len(site.kind("shared")) == 8
        begun = time.monotonic()
        site.outer.close()
        assert time.monotonic() - begun < LIMIT


def cut_off(rank, folder):
    """Two groups of ranks at once, for both wait for most of the time."""
    act, first, size = (ended, 0, 2) if rank < 2 else (parted, 2, 3)
    (folder / act.__name__).mkdir(exist_ok=True)
    return act(rank - first, size, folder / act.__name__)


@pytest.mark.full
def test_a_network_in_two_parts_has_one_that_goes_on_and_nobody_trains_without_the_store(
    apart, tmp_path
):
    sides = apart(5).run(cut_off, limit=600.0, folder=tmp_path)[2:]
    same_everywhere(sides)
    assert max(sides[2]) == max(sides[0])


@pytest.mark.full
def test_a_run_that_begins_again_is_told_what_it_waits_for(tmp_path):
    """Runs of the same name, the earlier ones killed or ended by an error, without a checkpoint."""
    server = serving(tmp_path / "address")
    store = (tmp_path / "address").read_text()

    def program(end, patience):
        """Start a program of one rank, and wait until it has trained, or ended."""
        lines = f"""
            import sys, threading, torch, gradwire
            from datetime import timedelta
            from gradwire.torch import diloco
            from gradwire.torch.diloco import membership
            membership._LAST = 120.0
            model = torch.nn.Linear(99, 99)
            members = diloco.Membership(
                {store!r},
                timeout=timedelta(seconds=60),
                patience=timedelta(seconds={patience}),
            )
            outer = diloco.DiLoCo(model, gradwire.topk(0.1), inner_steps=1, membership=members)
            outer.step()
            print("trained", outer.rounds, outer.world_size, flush=True)
            sys.stdin.readline()
            {end}
        """
        pipe = subprocess.PIPE
        command = [sys.executable, "-c", textwrap.dedent(lines)]
        made = subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe, text=True)
        return made, made.stdout.readline().strip()

    try:
        failed, told = program("raise ValueError('a bug')", 240)
        assert told == "trained 1 1"
        assert "a bug" in failed.communicate("\n")[1]
        killed, told = program("pass", 240)
        assert told == "trained 1 1"  # whoever ends by an error has left
        killed.kill()
        killed.wait()
        waits, told = program("pass", 10)
        assert told == ""
        said = waits.communicate()[1]
    finally:
        server.kill()
        server.wait()
    warning = "the members of this run, which show no sign of life in the store"
    assert said.partition("Traceback")[0].count(warning) == 1
    assert "If they have ended, use another name=" in said
    assert "MembershipError: gave up after" in said
