"""Training across sites by ranks that come and go, each a process of its own."""

import contextlib
import hashlib
import os
import signal
import socket
import stat
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
from torch import nn

import gradwire
from gradwire.torch import diloco
from gradwire.torch.diloco import generation
from gradwire.torch.diloco.heartbeat import Heartbeat
from gradwire.torch.errors import ExchangeError, MembershipError, TensorError
from gradwire.torch.transport import Gloo, stores
from tests.distributed.scenarios.common import batch, bits, network, reaches

SHARED = {"inner_steps": 2, "outer_lr": 1.0, "outer_momentum": 0.0, "min_numel": 65}
"""With these, shared parameters move by the mean of what is decoded, and by nothing else."""

STREAMING = {"inner_steps": 4, "fragments": 2, "delay": 3, "outer_momentum": 0.5}

LIMIT = 120.0
"""Seconds for what takes one or two on an idle machine, beside the timeouts that are tested."""


class Site:
    """A rank with its model and optimizer, and what it notes of every round."""

    def __init__(
        self, number: int, members: diloco.Membership, load: Any = None, **options: Any
    ) -> None:
        self.number = number
        self.model = network(seed=number)  # other parameters on each rank
        if load is not None:
            self.model.load_state_dict(load)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.02)
        options = {"codec": gradwire.topk(0.1), **SHARED, **options}
        self.outer = diloco.DiLoCo(self.model, membership=members, **options)
        self.rounds: dict[int, str] = {}
        self.sizes: dict[int, int] = {}
        self.made = 0

    def step(self) -> None:
        """One inner step, with new data."""
        inputs, targets = batch(self.number, self.made)
        self.made += 1
        self.optimizer.zero_grad()
        nn.functional.mse_loss(self.model(inputs), targets).backward()
        self.optimizer.step()
        self.outer.step()
        self.rounds[self.outer.rounds] = self.common()
        self.sizes[self.outer.rounds] = self.outer.world_size
        time.sleep(0.01)  # leave the processor to the other ranks

    def until(self, condition: Callable[[], bool], limit: float = LIMIT) -> None:
        """Train until something holds."""
        deadline = time.monotonic() + limit
        while not condition():
            assert time.monotonic() < deadline, "it took too long"
            self.step()

    def round(self, number: int) -> None:
        """Train up to a round."""
        self.until(lambda: self.outer.rounds >= number)

    def kind(self, kind: str) -> dict[str, torch.Tensor]:
        """One kind of tensors in this rank's checkpoint."""
        ((_, saved),) = self.outer.state_dict().items()
        tensors: dict[str, torch.Tensor] = saved[kind]
        return tensors

    def common(self) -> str:
        """The bits of the parameters that all ranks share, with the outer momentum."""
        shared = self.outer._replica.shared()
        return hashlib.sha256(b"".join(bits(each) for each in shared)).hexdigest()

    def mass(self) -> dict[str, torch.Tensor]:
        """What is still to be sent: the residual, and the moves since the last exchange."""
        own = dict(self.model.named_parameters())
        shared, residual = self.kind("shared"), self.kind("residual")
        return {name: shared[name] - own[name].detach() + residual[name] for name in residual}

    def found(self) -> dict[str, Any]:
        return {"rounds": self.rounds, "sizes": self.sizes, "rank": self.outer.rank}


def members_of(folder: str, **options: Any) -> diloco.Membership:
    """A membership over a file that all ranks share."""
    options = {"timeout": timedelta(seconds=30), **options}
    return diloco.Membership(stores.FileStore(f"{folder}/store", -1), **options)


def die(outer: diloco.DiLoCo) -> None:
    """End this process as a power cut does: between two writes to the store, all of which last."""
    changing: Any = outer._ranks
    changing._membership._open.call(lambda store: os.kill(os.getpid(), signal.SIGKILL))


def dies_in(outer: diloco.DiLoCo, moment: str) -> None:
    """Have this process die in its next exchange."""
    flights: Any = outer._flights
    if moment == "sent":  # the others have its frames, or a part of them
        flights.engine.exchange.receive = lambda flight: die(outer)
    else:  # it has received everything, and the others cannot know
        flights._confirm.compare = lambda name, told: die(outer)


def losses(rank: int, world_size: int, folder: str) -> dict[str, Any]:
    """Ranks die one after another, each at another moment; the last one goes on alone."""
    site = Site(rank, members_of(folder))
    site.until(lambda: site.outer.world_size == world_size)
    for lost, moment in ((3, "steps"), (2, "sent"), (1, "received")):
        end = site.outer.rounds + 2
        site.round(end)
        site.step()  # in the middle of a round
        if rank == lost and moment == "steps":
            die(site.outer)
        if rank == lost:
            dies_in(site.outer, moment)
        torch.save(change(site), Path(folder) / f"{moment}{rank}.pt")
        assert site.outer.rounds == end + 1
        torch.save(site.found(), Path(folder) / f"{rank}.pt")
    site.round(site.outer.rounds + 2)
    site.outer.close()
    return site.found()


def change(site: Site) -> dict[str, Any]:
    """Train through the round in which the ranks change, and return what goes in and out."""
    generation, rounds = site.outer.generation, site.outer.rounds
    shared, mass = site.kind("shared"), site.mass()
    own = dict(site.model.named_parameters())
    before: dict[str, torch.Tensor] = {}

    def note(*_: object) -> None:
        for name in mass:
            mass[name] += before[name] - own[name].detach()

    hook = site.optimizer.register_step_post_hook(note)
    deadline = time.monotonic() + LIMIT
    while site.outer.generation == generation or site.outer.rounds == rounds:
        assert time.monotonic() < deadline, "the ranks did not change"
        before.update({name: each.detach().clone() for name, each in own.items()})
        site.step()
    hook.remove()
    size = site.outer.world_size
    after, left = site.kind("shared"), site.mass()
    return {
        "size": size,
        "mass": mass,
        "left": left,
        "sent": {name: size * (shared[name] - after[name]) for name in mass},
    }


def pauses(rank: int, world_size: int, folder: str) -> dict[str, Any]:
    """A rank is stopped for longer than the timeout, and comes back with its residual."""
    pid = Path(folder) / "pid"
    site = Site(rank, members_of(folder, timeout=timedelta(seconds=20)), **STREAMING)
    site.until(lambda: site.outer.world_size == world_size)
    site.round(site.outer.rounds + 3)
    found: dict[str, Any] = {}
    if rank == world_size - 1:
        residual = site.kind("residual")
        (Path(folder) / "unfinished").write_text(str(os.getpid()))
        (Path(folder) / "unfinished").rename(pid)
        generation = site.outer.generation
        os.kill(os.getpid(), signal.SIGSTOP)
        site.until(lambda: site.outer.generation != generation)
        found["kept"] = residual.keys() == site.kind("residual").keys()
        found["missed"] = site.outer.generation - generation
    else:
        site.until(pid.exists)
        site.until(lambda: site.outer.world_size == world_size - 1)
        site.round(site.outer.rounds + 3)
        with contextlib.suppress(OSError):  # the other one may have done it
            os.kill(int(pid.read_text()), signal.SIGCONT)
    site.until(lambda: site.outer.world_size == world_size)
    site.round(site.outer.rounds + 4)
    if rank > 0:  # the first one leaves
        site.until(lambda: site.outer.world_size == world_size - 1)
        site.round(site.outer.rounds + 2)
    site.outer.close()
    return {**site.found(), **found}


def joins(rank: int, world_size: int, folder: str) -> dict[str, Any]:
    """A rank joins others that have exchanges under way; a wrong one is refused; all resume."""
    found: dict[str, Any] = {}
    members = members_of(folder, min_size=world_size - 1)
    started = Path(folder) / "started"
    if rank == world_size - 1:
        assert reaches(started.exists, LIMIT)
        try:
            Site(rank, members_of(folder), **STREAMING | {"delay": 1})
        except ValueError as error:
            found["refused"] = str(error)
        site = Site(rank, members, **STREAMING)
        found["begun"] = site.outer.rounds, site.outer.inner_step
    else:
        site = Site(rank, members, **STREAMING)
        site.round(5)
        started.touch()
        site.until(lambda: site.outer.world_size == world_size)
    site.round(site.outer.rounds + 3)
    found["errors"] = diverges(site, rank == 0)
    site.round(site.outer.rounds + 4)
    site.until(lambda: site.outer.inner_step % 4 == 3)  # exchanges are under way
    saved = {"model": site.model.state_dict(), "outer": site.outer.state_dict()}
    found["resumed"] = resumes(rank, world_size, folder, site, saved)
    return {**site.found(), **found}


def diverges(site: Site, here: bool) -> list[tuple[str | None, int]]:
    """Have a parameter diverge on one rank; all get the errors, and go on."""
    if here:
        with torch.no_grad():
            dict(site.model.named_parameters())["0.weight"][1, 2] = float("inf")
    errors = []
    end = site.outer.rounds + 8
    while site.outer.rounds < end:
        try:
            site.round(end)
        except TensorError as error:
            errors.append((error.name, error.rank))
            if here:
                site.outer.restore()
    return errors


def resumes(
    rank: int, world_size: int, folder: str, site: Site, saved: dict[str, Any]
) -> dict[str, Any]:
    """End the run, and train on from a checkpoint, in another run of the same ranks."""
    first = site.outer.rounds
    residual = site.kind("residual")
    site.outer.close()
    file = Path(folder) / f"{rank}.pt"
    torch.save(saved, file)
    read = torch.load(file, weights_only=True)
    again = members_of(folder, name="again", min_size=world_size)
    other = Site(rank, again, read["model"], state_dict=read["outer"], **STREAMING)
    position = other.outer.rounds, other.outer.inner_step
    kept = other.kind("residual")
    other.round(first + 4)
    other.outer.close()
    return {
        "position": position == (first, site.outer.inner_step),
        "kept": all(torch.equal(residual[name], kept[name]) for name in residual),
        "rounds": [other.rounds[each] for each in range(first + 1, first + 5)],
    }


WHOLE = timedelta(seconds=60)
"""Longer than a busy machine stops ranks between which nothing is cut."""

SOON = 3.0
"""Seconds until a store is given up that is cut off: nothing could be waited for any longer."""


class Cable(Gloo):
    """Connects ranks, except to one whose network is cut: what would time out then fails at once.

    Each tells the others through the store, which it reaches nevertheless.
    """

    cut = False

    def make(self, *given: Any) -> Any:
        told = stores.PrefixStore(f"cable/{len(self._made)}", self._store)
        told.set(str(self._rank), "cut" if Cable.cut else "whole")
        if any(told.get(str(rank)) == b"cut" for rank in range(self._size)):
            raise ExchangeError("the network is cut")
        return super().make(*given)


def give_up_soon(members: Any) -> None:
    """Have a membership whose store is gone find that out in little time."""
    members._watch.timeout = members._link._timeout = SOON


def members_in(store: str) -> tuple[str, ...]:
    """Who the members are, as the store has it."""
    host, _, port = store.rpartition(":")
    client = stores.TCPStore(host, int(port), is_master=False, wait_for_workers=False)
    inside = stores.PrefixStore("gradwire/diloco", client)
    return Heartbeat("nobody", 60.0).change(inside, lambda found: found).members


def hang_up(*ports: int) -> None:
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

    def __init__(self, to: str) -> None:
        host, _, port = to.rpartition(":")
        self._to = host, int(port)
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        self._open: list[socket.socket] = []
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                near, _ = self._listener.accept()
                far = socket.create_connection(self._to)
                self._open += [near, far]
                for one, other in ((near, far), (far, near)):
                    threading.Thread(target=self._copy, args=(one, other), daemon=True).start()

    @staticmethod
    def _copy(one: socket.socket, other: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := one.recv(1 << 16):
                other.sendall(data)

    def cut(self) -> None:
        """Let nothing pass any more."""
        for each in (self._listener, *self._open):
            with contextlib.suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
            each.close()


def parted(rank: int, world_size: int, folder: str) -> dict[str, Any]:
    """One of three ranks is cut off: first from the others only, then from the store as well.

    It comes back with its checkpoint when the network is whole again.
    """
    generation.Gloo = Cable  # type: ignore[attr-defined]
    address = Path(folder) / "address"
    server = serving(address) if rank == 0 else None
    try:
        assert reaches(address.exists, LIMIT)
        store = address.read_text()
        if rank == world_size - 1:
            return is_cut_off(rank, world_size, folder, store)
        site = Site(rank, diloco.Membership(store, timeout=WHOLE, min_size=2))
        for part in ("others", "store"):
            together(site, world_size)
            site.until(lambda: site.outer.world_size == 2, 2 * LIMIT)  # the majority goes on
            site.round(site.outer.rounds + 3)
            site.until((Path(folder) / part).exists, 2 * LIMIT)
        together(site, world_size)
        site.outer.close()
        return {**site.found(), "errors": []}
    finally:
        if server is not None:
            reaches((Path(folder) / "done").exists, LIMIT)  # the last one has left
            server.kill()
            server.wait()


def together(site: Site, world_size: int) -> None:
    """Train with all ranks for some rounds."""
    site.until(lambda: site.outer.world_size == world_size, 2 * LIMIT)
    site.round(site.outer.rounds + 3)


def is_cut_off(rank: int, world_size: int, folder: str, store: str) -> dict[str, Any]:
    """What the one rank does."""
    relay = Relay(store)
    through = f"127.0.0.1:{relay.port}"
    errors, all_kept = [], []
    members = diloco.Membership(through, timeout=WHOLE, min_size=2)
    site = Site(rank, members)
    for part, then in (("others", through), ("store", store)):
        together(site, world_size)
        Cable.cut = True
        if part == "store":
            relay.cut()
            give_up_soon(members)
        hang_up(int(store.rpartition(":")[2]), relay.port)
        errors.append(error_of(site))
        residual, rounds, sizes = site.kind("residual"), site.rounds, site.sizes
        saved = {"model": site.model.state_dict(), "outer": site.outer.state_dict()}
        site.outer.close()
        is_left_behind(members.name, store)
        (Path(folder) / part).touch()
        Cable.cut = False
        members = diloco.Membership(then, timeout=WHOLE)
        site = Site(rank, members, saved["model"], state_dict=saved["outer"])
        site.rounds, site.sizes = rounds, sizes
        kept = site.kind("residual")
        all_kept.append(all(torch.equal(residual[name], each) for name, each in kept.items()))
    together(site, world_size)
    site.outer.close()
    (Path(folder) / "done").touch()
    return {**site.found(), "errors": errors, "kept": all_kept}


def is_left_behind(name: str, store: str) -> None:
    """Wait until the others have gone on without a rank."""
    assert reaches(lambda: name not in members_in(store), 2 * LIMIT)


def error_of(site: Site) -> str:
    """Train until this rank is alone."""
    try:
        site.until(lambda: False, 2 * LIMIT)
    except MembershipError as error:
        return str(error)
    raise AssertionError("it was not cut off")


def ended(rank: int, world_size: int, folder: str) -> dict[str, Any]:
    """The process that serves the store ends: no rank goes on, and each can save."""
    address = Path(folder) / "address"
    if rank == 0:
        port = serving(address)
    try:
        assert reaches(address.exists, LIMIT)
        store = address.read_text()
        members = diloco.Membership(store, min_size=2, timeout=WHOLE)
        site = Site(rank, members)
        site.round(3)
        if rank == 0:
            port.kill()
            port.wait()
            (Path(folder) / "killed").touch()
        try:
            site.until((Path(folder) / "killed").exists)
            give_up_soon(members)
            site.until(lambda: False)
        except MembershipError as error:
            found = {"error": str(error), "saved": sorted(site.kind("shared"))}
        begun = time.monotonic()
        site.outer.close()
        return {**found, "closed": time.monotonic() - begun < LIMIT}
    finally:
        if rank == 0:
            port.kill()
            port.wait()


def cut_off(rank: int, world_size: int, folder: str) -> dict[str, Any]:
    """Two groups of ranks at once, for both wait for most of the time."""
    act, first, size = (ended, 0, 2) if rank < 2 else (parted, 2, 3)
    Path(folder, act.__name__).mkdir(exist_ok=True)
    return act(rank - first, size, f"{folder}/{act.__name__}")


def starts_again(rank: int, world_size: int, folder: str) -> dict[str, Any]:
    """Runs of the same name, the earlier ones killed or ended by an error, without a checkpoint."""
    address = Path(folder) / "address"
    port = serving(address)
    store = address.read_text()

    def program(end: str, patience: int) -> "subprocess.Popen[str]":
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
        made = subprocess.Popen(
            [sys.executable, "-c", textwrap.dedent(lines)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        assert made.stdout is not None
        made.told = made.stdout.readline().strip()  # type: ignore[attr-defined]
        return made

    try:
        failed = program("raise ValueError('a bug')", 240)
        _, trace = failed.communicate("\n")
        killed = program("pass", 240)
        killed.kill()
        killed.wait()
        waits = program("pass", 10)
        _, said = waits.communicate()
        return {
            "first": failed.told,  # type: ignore[attr-defined]
            "trace": trace,
            "again": killed.told,  # type: ignore[attr-defined]
            "refused": waits.told,  # type: ignore[attr-defined]
            "said": said,
        }
    finally:
        port.kill()
        port.wait()


def serving(address: Path, host: str = "127.0.0.1") -> "subprocess.Popen[str]":
    """Serve a store in a process of its own, as users do, and write where."""
    command = [sys.executable, "-m", "gradwire.torch.diloco", "0", "--host", host]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    port = process.stdout.readline().split()[-1]
    unfinished = address.with_suffix(".unfinished")
    unfinished.write_text(f"{host}:{port}")
    unfinished.rename(address)
    return process
