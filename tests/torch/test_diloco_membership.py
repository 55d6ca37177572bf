"""Who trains together, what counts, and wrong arguments: without other processes."""

import gc
import json
import threading
import time
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import asdict
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

import gradwire
from gradwire.torch import diloco
from gradwire.torch.diloco import roster as rosters
from gradwire.torch.diloco.exchanges import FragmentExchanges
from gradwire.torch.diloco.membership import WaitLog
from gradwire.torch.diloco.recovery import RankReport, decide
from gradwire.torch.diloco.roster import Generation, Roster, Waiting
from gradwire.torch.diloco.store_client import Heartbeat, _Pulse
from gradwire.torch.diloco.untrained import broadcast
from gradwire.torch.errors import MembershipError
from gradwire.torch.transport.store import Gloo, Secret, stores


def roster(members: str, generation: int = 3, **waiting: tuple[Any, ...]) -> Roster:
    """Members and ranks that wait, by letters; each with what it held, where it failed, and whom
    it reached nevertheless.
    """
    there = {
        key: Waiting(held, failed, reached=tuple("".join(reachable)))
        for key, (held, failed, *reachable) in waiting.items()
    }
    return Roster(generation, tuple(members), there)


@pytest.mark.parametrize(
    ("there", "chosen"),
    [
        (roster("abc", a=(3, 0), c=(3, 0)), "ac"),  # b is lost
        (roster("ab", d=(0, 0), b=(3, 0), a=(3, 0)), "abd"),  # members keep their order
        (roster("abc", a=(2, 3), c=(2, 3)), "ac"),  # b was lost while they connected
        (roster("ab", a=(2, 3), b=(2, 3)), "a"),  # they do not reach each other: one goes on
        (roster("abc", a=(2, 3), b=(2, 0), c=(2, 3)), "ab"),  # b reaches both
        (roster("abd", a=(2, 3, "b"), b=(2, 3, "a"), d=(0, 3)), "ab"),  # as before d came
        (roster("abd", a=(2, 3, "bd"), b=(2, 3, "a"), d=(0, 3, "a")), "ab"),
        (roster("abd", a=(2, 3, "b"), b=(2, 3, "a"), d=(1, 3), e=(0, 0)), "abe"),
        # A network in two parts: the larger one goes on, or that of the first member.
        (roster("abc", a=(2, 3), b=(2, 3, "c"), c=(2, 3, "b")), "bc"),
        (roster("abc", a=(2, 3, "c"), b=(2, 3), c=(2, 3, "a")), "ac"),
        (roster("abcd", a=(2, 3, "b"), b=(2, 3, "a"), c=(2, 3, "d"), d=(2, 3, "c")), "ab"),
        (
            roster(
                "abcde",
                a=(2, 3, "d"),
                b=(2, 3, "ce"),
                c=(2, 3, "be"),
                d=(2, 3, "a"),
                e=(2, 3, "bc"),
            ),
            "bce",
        ),
        # Only what both have reached counts; those that have parameters come first.
        (roster("abc", a=(2, 3, "bc"), b=(2, 3, "c"), c=(2, 3, "b")), "bc"),
        (roster("abcd", a=(2, 3, "b"), b=(2, 3, "a"), c=(0, 3, "d"), d=(0, 3, "c")), "ab"),
        (roster("", 0, c=(0, 0), a=(0, 0)), "ca"),  # the first of all
    ],
)
def test_who_is_the_next_generation(there: Roster, chosen: str) -> None:
    following = there.with_generation(there.next_members("abcde"))
    assert "".join(following.members) == chosen
    assert following.generation == there.generation + 1
    assert not following.waiting
    assert Roster.read(following.text()) == following


def test_ranks_that_did_not_reach_each_other_begin_again_as_if_they_had() -> None:
    there = roster("abc", a=(2, 3), b=(2, 3, "c"), c=(2, 3, "b"), d=(0, 0))
    assert there.is_split("abc", 3)
    assert not there.is_split("abc", 2)  # b and c do
    assert not there.is_split("ab", 2)  # c is lost: nobody knows yet
    assert not there.is_split("ab", 3)  # there are too few in any case
    again = there.without_failures()
    assert again.next_members("abcd") == ["a", "b", "c", "d"]
    assert [each.held for each in again.waiting.values()] == [2, 2, 2, 0]
    assert Roster.read(again.text()) == again


def test_ranks_connect_again_when_the_network_between_them_is_mended(monkeypatch) -> None:
    monkeypatch.setattr(Heartbeat, "silent", lambda self, name: 0.0)  # however slow this machine is
    store = stores.HashStore()
    options: dict[str, Any] = {
        "min_size": 2,
        "timeout": timedelta(seconds=1),
        "patience": timedelta(seconds=240),
    }
    every: list[Any] = [diloco.Membership(store, **options) for _ in range(3)]
    names = tuple(each.name for each in every)
    inside = stores.PrefixStore("gradwire/diloco", store)
    there = dict.fromkeys(names, Waiting(1, 1, trained=True))
    Heartbeat("nobody", 60.0).change(inside, lambda _: Roster(1, names, there, trained=True))

    def asks(each: Any) -> Any:
        each._generation = 1
        each.begin()
        alone = Waiting(1, 1, trained=True)  # it could not reach anybody in generation 1
        return each.form(alone, {})

    with ThreadPoolExecutor(3) as threads:
        found = list(threads.map(asks, every))
    assert {each.generation for each in found} == {2}
    assert {each.members for each in found} == {names}
    for each in every:
        each.leave()


def test_other_settings_are_refused_while_there_are_members() -> None:
    first = Roster().with_waiting("a", Waiting(), {"codec": "one", "delay": "0"})
    with pytest.raises(
        ValueError, match=r"its delay is 1, but that of the members is 0; .* another name="
    ):
        first.with_generation("a").with_waiting("b", Waiting(), {"codec": "one", "delay": "1"})
    first.with_generation("a").without("a").with_waiting("b", Waiting(), {"codec": "two"})


def told(applied: int, sent: int, arrived: str = "", **more: Any) -> RankReport:
    """What a rank of generation 2 tells; 'x' is an exchange that was not finite."""
    fates = {applied + at: each != "x" for at, each in enumerate(arrived)}
    known: dict[str, Any] = {
        "held": 2,
        "size": 2,
        "valid": True,
        "restored": False,
        "settled": 0,
        "bits": 1,
    }
    position = {"inner_step": 9, "applied": applied, "sent": sent}
    return RankReport(
        **{**known, "position": position, "arrived": fates, "counted": {1: 4}, **more}
    )


@pytest.mark.parametrize("name", ["", "\ud800", "a" * 256, "a\nb"])
@pytest.mark.parametrize("where", ["members", "waiting", "reachable"])
def test_a_roster_with_a_name_that_no_rank_has_is_refused(where: str, name: str) -> None:
    there = {
        "members": Roster(members=(name,)),
        "waiting": Roster(waiting={name: Waiting()}),
        "reachable": Roster(waiting={"a": Waiting(reached=(name,))}),
    }
    with pytest.raises(ValueError, match="a rank has the name"):
        Roster.read(there[where].text())


@pytest.mark.parametrize(
    "changed", [{"arrived": []}, {"arrived": {"one": True}}, {"later": 1}, {"counted": None}]
)
def test_what_another_version_tells_is_a_typed_error(changed: dict[str, Any]) -> None:
    found = json.loads(json.dumps(asdict(told(1, 2, "+"))))
    assert RankReport.read(found) == told(1, 2, "+")
    with pytest.raises(MembershipError, match="the same version of gradwire"):
        RankReport.read({**found, **changed})


@pytest.mark.parametrize(
    ("every", "source", "keep", "applied", "sent"),
    [
        # One has applied what the other has received: that follows.
        ([told(5, 6, "."), told(6, 6)], 1, {0, 1}, 6, 6),
        # A rank is lost: what nobody has confirmed is sent again by those who are left.
        ([told(5, 7, ".."), told(5, 7, "..")], 0, {0, 1}, 5, 7),
        ([told(5, 7, "..", size=3), told(5, 7, "..", size=3)], 0, {0, 1}, 5, 5),
        ([told(5, 7, "..", size=3, settled=6)] * 2, 0, {0, 1}, 5, 6),
        # Nobody is lost, and one has not received the second.
        ([told(5, 7, ".x"), told(5, 7, ".")], 0, {0, 1}, 5, 6),
        # New ranks, ranks that were away, and those that were receiving take what others have.
        ([told(0, 0, held=0), told(5, 5), told(5, 5)], 1, {1, 2}, 5, 5),
        ([told(7, 8, held=1), told(5, 5), told(5, 5)], 1, {1, 2}, 5, 5),
        ([told(5, 5, valid=False, held=3), told(5, 5), told(5, 5)], 1, {1, 2}, 5, 5),
        # Nobody has trained: the first one, or the furthest checkpoint.
        ([told(0, 0, held=0), told(0, 0, held=0)], 0, {0}, 0, 0),
        ([told(0, 0, held=0), told(3, 4, ".", held=0, restored=True)], 1, {1}, 3, 4),
        ([told(3, 3, held=0, restored=True)] * 2, 0, {0, 1}, 3, 3),
        (
            [told(3, 3, held=0, restored=True, bits=2), told(3, 3, held=0, restored=True)],
            0,
            {0},
            3,
            3,
        ),
    ],
)
def test_what_counts(every, source, keep, applied, sent) -> None:
    plan = decide(every)
    assert (plan.source, set(plan.keep)) == (source, keep)
    assert plan.position == {"inner_step": 9, "applied": applied, "sent": sent}
    assert list(plan.finite) == list(range(applied, sent))
    if every[source].held:
        assert plan.counted == {1: 4, 2: sent}


def test_ranks_that_were_left_without_parameters_do_not_make_any_up() -> None:
    with pytest.raises(MembershipError, match="are gone: restart"):
        decide([told(5, 5, valid=False), told(5, 5, valid=False, held=1)])


def test_a_rank_whose_partners_are_gone_does_not_begin_their_training_anew() -> None:
    first = Roster().with_waiting("a", Waiting(), {}).with_generation("a")
    assert not first.trained
    second = (
        first.with_waiting("a", Waiting(1, trained=True), {})
        .with_waiting("b", Waiting(), {})
        .with_generation("ab")
    )
    third = second.with_waiting("b", Waiting(0, 2), {}).with_generation(
        "b"
    )  # a is lost before b has anything
    assert Roster.read(third.text()).trained
    with pytest.raises(MembershipError, match="are gone: restart"):
        decide([told(0, 0, held=0)], trained=True)
    assert decide([told(3, 3, held=0, restored=True)], trained=True).position["applied"] == 3
    assert not third.without("b").trained  # nobody is left, so that others may begin


def test_beats_are_read_without_a_change_of_the_store() -> None:
    store, watch = stores.HashStore(), Heartbeat("a", 60.0)
    watch.change(store, lambda roster: roster.with_waiting("b", Waiting(), {}))
    watch.beat_and_read(store)
    assert not store.check(["beat/b"])
    store.add("beat/b", 3)
    watch.beat_and_read(store)
    assert watch.beats("b")


def heard(watch: Heartbeat, silent: set[str]) -> WaitLog:
    """What a rank says, to whom all but these have just shown a sign of life."""
    now = time.monotonic()
    for name in "bcd":
        at = -1e9 if name in silent else now
        watch._pulses[name] = _Pulse(2, at, again=True)
    return WaitLog(watch, 3, trained=False, began=-1e9)


@pytest.mark.parametrize(
    ("there", "silent", "text"),
    [
        (roster("bc", a=(0, 0)), set(), "waiting for b, c to admit this rank"),
        (roster("bc", a=(0, 0)), {"b"}, "waiting for b, c to admit this rank"),
        (roster("bc", a=(0, 0)), {"b", "c"}, "waiting for b, c, the members of this run, which"),
        (roster("", 0, a=(0, 0), b=(0, 0), c=(0, 0)), {"b"}, "there are 2, and min_size=3"),
        (roster("", 0, a=(0, 0), b=(0, 0), c=(0, 0)), {"b", "c"}, "there are 1, and min_size=3"),
        (roster("", 0, a=(0, 0), b=(0, 0), c=(0, 0)), set(), "waiting for b, c to form"),
        (roster("ab", a=(2, 3), c=(0, 0), d=(0, 0)), set(), "waiting for b to form"),
        (
            roster("abc", a=(2, 3), b=(2, 3, "c"), c=(2, 3, "b")),
            set(),
            "of a, b, c, fewer than min_size=3 do. All of them connect again after 60",
        ),
    ],
)
def test_what_is_said_depends_on_who_shows_signs_of_life(there, silent, text, caplog) -> None:
    caplog.set_level("INFO", "gradwire.diloco")
    heard(Heartbeat("a", 60.0), silent).waiting(there)
    (said,) = caplog.records
    assert text in said.getMessage()
    usual = said.getMessage().endswith((" after their next exchange", "form the next generation"))
    assert said.levelname == ("INFO" if usual else "WARNING")


class Recorded:
    """A channel that keeps what the source sends, for the other rank to receive."""

    def __init__(self) -> None:
        self.rank = 0
        self.sent: list[torch.Tensor] = []

    def broadcast(self, piece: torch.Tensor, source: int) -> "Recorded":
        if self.rank == source:
            self.sent.append(piece.clone())
        else:
            piece.copy_(self.sent.pop(0))
        return self

    def wait(self) -> None:
        pass


def test_large_tensors_are_shared_in_pieces() -> None:
    channel: Any = Recorded()
    tensors = [torch.randn(1500, 1001), torch.tensor(7), torch.zeros(0), torch.randn(5, 4).t()]
    broadcast(channel, tensors, 0)
    sizes = [piece.nbytes for piece in channel.sent]
    assert max(sizes) == 4 << 20
    assert sum(sizes) == sum(each.nbytes for each in tensors)
    assert len(sizes) == 2 + 3  # the first has 6 MB
    channel.rank = 1
    received = [torch.zeros(each.shape, dtype=each.dtype) for each in tensors]
    broadcast(channel, received, 0)
    assert not channel.sent
    assert all(torch.equal(*pair) for pair in zip(tensors, received, strict=True))


def test_a_rank_leaves_another_only_when_that_has_seen_the_connection(monkeypatch) -> None:
    left, early = threading.Event(), []

    class Slow(Gloo):
        """Rank 1 is told of a connection later than rank 0."""

        def make(self, *args: Any) -> Any:
            channel = super().make(*args)
            if self._rank == 1:
                early.append(left.wait(0.5))
            return channel

        def leave(self) -> None:
            left.set()
            super().leave()

    monkeypatch.setattr(rosters, "Gloo", Slow)
    store, limit = stores.HashStore(), timedelta(seconds=120)
    with ThreadPoolExecutor(2) as threads:
        formed = [Generation(1, rank, ("a", "b"), False, lambda: store, limit) for rank in (0, 1)]
        both = [threads.submit(each.reachable) for each in formed]
        assert [each.result() for each in both] == [("b",), ("a",)]
    assert early == [False]


def test_a_rank_alone_has_nobody_to_reach() -> None:
    alone = Generation(1, 0, ("a",), False, stores.HashStore, timedelta(seconds=60))
    assert alone.reachable() == ()


def membership(**options: Any) -> diloco.Membership:
    return diloco.Membership(stores.HashStore(), **options)


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"store": "here"}, r'store must be "host:port" or a store of torch.distributed, got'),
        ({"store": 5}, r'store must be "host:port" .* got int'),
        ({"serve": True}, "a store object is already served"),
        ({"name": ""}, "name must be the name of the run"),
        ({"timeout": 5}, "timeout must be a timedelta of at least a second, got 5"),
        ({"patience": timedelta(0)}, "patience must be a timedelta"),
        ({"min_size": 0}, "min_size"),
    ],
)
def test_wrong_memberships_are_explained(options, text) -> None:
    with pytest.raises((TypeError, ValueError), match=text):
        diloco.Membership(**{"store": stores.HashStore(), **options})


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"timeout": timedelta(seconds=9)}, "timeout= is the membership's"),
        ({"state_dict": {}}, "expected what DiLoCo.state_dict"),
        ({"state_dict": {}, "membership": None}, "without a membership, load a state_dict with"),
    ],
)
def test_what_does_not_go_with_a_membership_is_explained(options, text) -> None:
    options = {"codec": gradwire.topk(0.1), "membership": membership(), **options}
    with pytest.raises((TypeError, ValueError), match=text):
        diloco.DiLoCo(torch.nn.Linear(99, 99), options.pop("codec"), **options)


def test_one_rank_alone_waits_for_others_only_as_long_as_it_is_told() -> None:
    members = membership(min_size=2, timeout=timedelta(seconds=60), patience=timedelta(seconds=1))
    with pytest.raises(MembershipError, match="up after 1 seconds of waiting for more ranks"):
        diloco.DiLoCo(torch.nn.Linear(99, 99), gradwire.topk(0.1), membership=members)


def test_what_is_waited_for_is_said_once_and_as_a_warning_only_if_it_lasts(caplog) -> None:
    caplog.set_level("INFO", "gradwire.diloco")
    members = membership(
        min_size=2, timeout=timedelta(seconds=3), patience=timedelta(seconds=3), name="lonely"
    )
    with pytest.raises(MembershipError, match="there are 1, and min_size=2"):
        diloco.DiLoCo(torch.nn.Linear(99, 99), gradwire.topk(0.1), membership=members)
    texts = [each.getMessage() for each in caplog.records if each.levelname == "WARNING"]
    assert texts == ["waiting for more ranks: there are 1, and min_size=2"]


def test_a_membership_that_nobody_closed_leaves_with_its_object() -> None:
    store = stores.HashStore()
    options: dict[str, Any] = {"codec": gradwire.topk(0.1), "inner_steps": 1}
    model = torch.nn.Linear(99, 99)
    outer = diloco.DiLoCo(model, membership=diloco.Membership(store), **options)
    outer.step()
    del outer
    gc.collect()
    with diloco.DiLoCo(model, membership=diloco.Membership(store), **options) as other:
        assert (other.world_size, other.rounds) == (1, 0)


def formed(store: Any, **options: Any) -> diloco.Membership:
    """A membership with a generation of its own."""
    members = diloco.Membership(store, **options)
    members.begin()
    assert members.form(Waiting(), {}).members == (members.name,)
    return members


def test_a_membership_may_be_collected_by_the_thread_that_it_has_itself() -> None:
    store = stores.HashStore()
    held = [formed(store)]
    link: Any = held[0]._link
    link.call(lambda _: held.clear())  # the finalizer runs in there
    link._thread.join(120.0)
    assert not link._thread.is_alive()
    assert link.join(0.0)
    inside = stores.PrefixStore("gradwire/diloco", store)
    assert Heartbeat("other", 60.0).beat_and_read(inside).members == ()


def test_a_finalizer_waits_for_nothing_though_the_store_does_not_answer() -> None:
    store = stores.HashStore()
    held = [formed(store)]
    link: Any = held[0]._link
    go = threading.Event()
    link._calls.put((lambda _: go.wait(120.0), Future()))  # the link's thread is busy
    held.clear()  # returns nevertheless
    assert link._thread.is_alive()
    go.set()
    assert link.join(120.0)
    inside = stores.PrefixStore("gradwire/diloco", store)
    assert Heartbeat("other", 60.0).beat_and_read(inside).members == ()


def test_a_membership_is_for_one_training() -> None:
    members = membership()
    options: dict[str, Any] = {"codec": gradwire.topk(0.1), "inner_steps": 1, "membership": members}
    refused = pytest.raises(ValueError, match="a Membership is for one DiLoCo: make another one")
    with diloco.DiLoCo(torch.nn.Linear(99, 99), **options) as outer:
        with refused:
            diloco.DiLoCo(torch.nn.Linear(99, 99), **options)
        assert outer.step() == 1  # the first one is a member nevertheless
    with refused:
        diloco.DiLoCo(torch.nn.Linear(99, 99), **options)


def test_one_rank_alone_trains_and_resumes_bit_for_bit() -> None:
    def trained(saved, steps):
        torch.manual_seed(1)
        model = torch.nn.Linear(64, 32)
        if saved is not None:
            model.load_state_dict(saved["model"])
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        with diloco.DiLoCo(
            model,
            gradwire.topk(0.1),
            optimizer=optimizer,
            inner_steps=3,
            membership=membership(name="alone"),
            state_dict=None if saved is None else saved["outer"],
        ) as outer:
            assert (outer.rank, outer.world_size, outer.generation) == (0, 1, 1)
            assert len(outer.members) == 1
            for step in steps:
                optimizer.zero_grad()
                model(torch.full((1, 64), float(step))).square().mean().backward()
                optimizer.step()
            with pytest.raises(ValueError, match=r"DiLoCo\(..., state_dict=\)"):
                outer.load_state_dict(outer.state_dict())
            return {"model": model.state_dict(), "outer": outer.state_dict()}

    half, whole = trained(None, range(5)), trained(None, range(11))
    resumed = trained(half, range(5, 11))
    assert resumed["outer"]["rank0"]["outer"] == whole["outer"]["rank0"]["outer"]
    for kind in ("shared", "velocity", "residual"):
        for name, each in whole["outer"]["rank0"][kind].items():
            assert torch.equal(each, resumed["outer"]["rank0"][kind][name]), (kind, name)


def test_only_ranks_with_a_checkpoint_succeed_members_that_are_silent(monkeypatch) -> None:
    store = stores.HashStore()

    def made(name: str, **options: Any) -> diloco.DiLoCo:
        members = diloco.Membership(store, patience=timedelta(seconds=1))
        members.name = members._watch.name = name
        model = torch.nn.Linear(99, 99)
        return diloco.DiLoCo(
            model, gradwire.topk(0.1), inner_steps=1, membership=members, **options
        )

    last: Any
    with made("suspended") as last:
        last.step()
        saved = last.state_dict()
        # To others, it has been silent for longer than any timeout.
        monkeypatch.setattr(
            Heartbeat, "silent", lambda self, name: 1e9 if name == "suspended" != self.name else 0.0
        )
        with pytest.raises(MembershipError, match="If they have ended, use another name="):
            made("new")
        assert not last._ranks._membership.outdated()  # it can go on
        with made("resumed", state_dict=saved) as resumed:
            assert (resumed.rounds, resumed.generation) == (1, 2)
            assert resumed.members == ("resumed",)


def test_bytes_of_all_generations_count() -> None:
    def engine(sent: float) -> Any:
        return SimpleNamespace(exchange=SimpleNamespace(times=SimpleNamespace(wire_bytes=sent)))

    nobody: Any = None
    replica: Any = SimpleNamespace(position={})
    flights = FragmentExchanges(replica, engine(0.0))
    for sent, total in ((100.0, 100.0), (20.0, 120.0), (3.0, 123.0)):
        flights.connect(engine(sent), nobody, lambda: False)
        assert flights.figures()[0] == total


def test_the_last_rank_has_sent_no_more_than_plain_bytes_would_be() -> None:
    model = torch.nn.Linear(99, 99)
    with diloco.DiLoCo(model, gradwire.topk(0.1), membership=membership()) as outer:
        outer._flights._before = 512.0  # to ranks that have left since
        outer.step()
        report = outer.report()
    assert (report.wire_bytes, report.dense_wire_bytes, report.compression) == (512.0, 0.0, 1.0)


TOKEN = "what only the ranks of this run know"


def test_a_store_that_others_may_reach_needs_a_token(monkeypatch) -> None:
    monkeypatch.delenv("GRADWIRE_DILOCO_TOKEN", raising=False)
    with pytest.raises(ValueError, match="environment variable GRADWIRE_DILOCO_TOKEN or token="):
        diloco.Membership("192.0.2.1:29400")
    for local in ("localhost:29400", "127.0.0.1:29400", "[::1]:29400"):
        assert diloco.Membership(local)._secret is None
    assert membership()._secret is None  # who gives an object knows who reaches it
    assert diloco.Membership("192.0.2.1:29400", token=TOKEN)._secret
    with pytest.raises(ValueError, match=r"at least 16 characters, got 5; python -c .* makes one"):
        membership(token="short")
    monkeypatch.setenv("GRADWIRE_DILOCO_TOKEN", TOKEN)
    assert diloco.Membership("192.0.2.1:29400")._secret


def listening(port: int) -> set[str]:
    """The addresses at which a port of this host is served."""
    lines = [
        line for kind in ("tcp", "tcp6") for line in Path("/proc/net", kind).read_text().split("\n")
    ]
    rows = [line.split() for line in lines if line]
    return {row[1] for row in rows if row[1].endswith(f":{port:04X}") and row[3] == "0A"}


def test_a_store_is_served_at_one_address_alone() -> None:
    members = diloco.Membership("127.0.0.1:0", serve=True)
    port = members._served.port  # type: ignore[union-attr]
    assert listening(port) == {f"0100007F:{port:04X}"}
    other = diloco.Membership(f"127.0.0.1:{port}")
    assert other.begin() == 1
    other.leave()
    with pytest.raises(MembershipError, match=r"could not be served at 192\.0\.2\.1:1"):
        diloco.Membership("192.0.2.1:1", serve=True, token=TOKEN)


@pytest.mark.parametrize(
    "text",
    [
        "no JSON",
        b"\xff\xfe",
        "[" * 100_000,
        "7",
        "{}",
        Roster().text().replace(b'"version": 1', b'"version": 0'),
        Roster().text().replace(b'"generation": 0', b'"generation": "many"'),
        Roster().text().replace(b'"generation": 0', b'"generation": NaN'),
        Roster().text().replace(b'"members": []', b'"members": [7]'),
        Roster().text().replace(b'"waiting": {}', b'"waiting": {"a": null}'),
    ],
)
def test_what_is_in_the_store_and_no_roster_is_one_error_also_at_the_end(text, caplog) -> None:
    store = stores.HashStore()
    outer: Any = diloco.DiLoCo(
        torch.nn.Linear(99, 99), gradwire.topk(0.1), membership=diloco.Membership(store)
    )
    store.set("gradwire/diloco/roster", text)
    with pytest.raises(MembershipError, match="roster of this run in the store cannot be read"):
        outer._ranks._membership._open.call(outer._ranks._membership._watch.beat_and_read)
    with pytest.raises(MembershipError, match="roster of this run in the store cannot be read"):
        outer._ranks._membership.outdated()
    with pytest.raises(MembershipError, match="roster of this run in the store cannot be read"):
        diloco.Membership(store).begin()
    outer.close()
    assert "left without a word to the others: the roster" in caplog.text


def test_an_older_roster_and_beats_that_are_none_are_refused() -> None:
    store = stores.HashStore()
    watch = Heartbeat("a", 60.0, Secret(b"key"))
    old = watch.change(store, lambda found: found.with_waiting("b", Waiting(), {}))
    written = store.get("roster")
    watch.replace(store, old, old.with_generation(["b"]))
    store.set("roster", written)
    with pytest.raises(MembershipError, match="has 1 changes, but this rank has seen 2"):
        watch.beat_and_read(store)
    assert watch.age == float("inf")
    other = Heartbeat("c", 60.0, Secret(b"key"))
    store.set("beat/b", "1")
    with pytest.raises(MembershipError, match="'beat/b' in the store was not written with"):
        other.beat_and_read(store)
    beaten = Heartbeat("b", 60.0, Secret(b"key"))
    beaten._read_all(store)
    first = store.get("beat/b")
    other.beat_and_read(store)
    beaten._read_all(store)
    other.beat_and_read(store)
    assert other.beats("b")
    pulse = other._pulses["b"].at
    store.set("beat/b", first)  # a beat that was seen before is none
    other.beat_and_read(store)
    assert other._pulses["b"].at == pulse


def test_a_connection_is_made_only_with_addresses_of_ranks() -> None:
    store, limit, secret = stores.HashStore(), timedelta(seconds=120), Secret(b"key")

    def connect(rank: int, known: Secret) -> Any:
        gloo = Gloo(store, rank, 2, limit, known)
        try:
            return gloo.make().size
        finally:
            gloo.leave()

    with ThreadPoolExecutor(2) as threads:
        both = [threads.submit(connect, rank, secret) for rank in (0, 1)]
        assert [each.result() for each in both] == [2, 2]
    store = stores.HashStore()
    store.set("0/0/1", b"an address of somebody else")
    with pytest.raises(MembershipError, match="'0/1' in the store was not written with"):
        connect(0, secret)


def test_what_is_connected_and_has_no_proof_is_refused() -> None:
    store, limit = stores.HashStore(), timedelta(seconds=120)

    def meet(rank: int, key: bytes) -> str:
        gloo = Gloo(store, rank, 2, limit)  # as if it had been at the right address
        try:
            Secret(key).prove(gloo.make())
        except MembershipError as error:
            return f"{error.rank} {error}"
        finally:
            gloo.leave()
        return ""

    with ThreadPoolExecutor(2) as threads:
        both = [threads.submit(meet, rank, key) for rank, key in enumerate((b"key", b"other"))]
        first, second = (each.result() for each in both)
    assert first.startswith("1 the peer connected as rank 1 does not know the token")
    assert second.startswith("0 the peer connected as rank 0 does not know the token")
