"""Somebody who reaches the ports of `gradwire.torch.diloco.Membership`, and has no token."""

import json
import os
import pickle
import time
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace
from unittest import mock

import pytest

from gradwire.torch import diloco
from gradwire.torch.errors import ExchangeError, MembershipError
from gradwire.torch.transport import messages
from gradwire.torch.transport.store import stores
from tests.distributed.scenarios.common import reaches
from tests.distributed.sites import LIMIT, Site, serving
from tests.distributed.test_membership import apart

__all__ = ["apart"]

pytestmark = [pytest.mark.timeout(600), pytest.mark.waits]

TOKEN = "what only the ranks of this run know"
WHOLE = timedelta(seconds=30)


def tampers(store):
    """Change the roster, which everybody can read, under a proof of other bytes."""
    proof, _, text = store.get("roster").partition(b" ")
    tampered = {**json.loads(text), "members": ["stranger"], "generation": 9}
    store.set("roster", proof + b" " + json.dumps(tampered).encode())


class Bomb:
    """Makes a file when it is unpickled."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return os.mkdir, (self.path,)


OTHER = "was not written with this rank's t"
ATTACKS = {
    "tampers": (tampers, OTHER),
    "pickle": (lambda store: store.set("roster", pickle.dumps(Bomb("never"))), OTHER),
    "deletes": (
        lambda store: store.delete_key("roster"),
        "the store was restarted|somebody has deleted it",
    ),
}
"""What a stranger does, and what ranks are told then."""


def attacked(rank, folder):
    """Two ranks train while the third process, which has no token, does what it can."""
    address = folder / "address"
    server = serving(address) if rank == 0 else None
    try:
        assert reaches(address.exists, LIMIT)
        act = stranger if rank == 2 else member
        found = {name: act(rank, folder, address.read_text(), name) for name in ATTACKS}
        if rank < 2:
            is_refused(address.read_text(), rank)
        (folder / f"end{rank}").touch()
        return found
    finally:
        if server is not None:
            reaches(lambda: all((folder / f"end{each}").exists() for each in (1, 2)), LIMIT)
            server.kill()
            server.wait()


def member(rank, folder, store, name):
    """Train until there is an error, and close."""
    members = diloco.Membership(store, token=TOKEN, name=name, timeout=WHOLE, min_size=2)
    site = Site(rank, members)
    site.round(3)
    (folder / f"{name}{rank}").touch()
    with pytest.raises(ExchangeError, match=ATTACKS[name][1]) as caught:
        site.until(lambda: False)
    assert isinstance(caught.value, MembershipError)
    # The last step may have made a round before it raised the error: then the other rank has it.
    assert site.common() == site.rounds.setdefault(site.outer.rounds, site.common())
    assert len(site.kind("shared")) == 8
    assert set(site.sizes.values()) == {2}
    site.outer.close()
    return site.rounds


def stranger(rank, folder, store, name):
    """Watch the ranks train, and then attack."""
    host, _, port = store.rpartition(":")
    client = stores.TCPStore(host, int(port), is_master=False, wait_for_workers=False)
    inside = stores.PrefixStore(f"gradwire/{name}", client)
    inside.wait(["roster"], timedelta(seconds=LIMIT))
    for each in (0, 1):
        assert reaches((folder / f"{name}{each}").exists, LIMIT)
    ATTACKS[name][0](inside)


def is_refused(store, rank):
    """Ranks with the token train; what has another one, or none, is told."""
    name = f"mixed{rank}"
    with Site(rank, diloco.Membership(store, token=TOKEN, name=name)).outer as outer:
        for token, said in (
            ("another token, just as long", "different tokens and need the same one"),
            (None, "with another release or token"),
        ):
            with pytest.raises(MembershipError, match=said):
                Site(9, diloco.Membership(store, token=token, name=name))
        outer.step()
        outer.step()
        assert (outer.rounds, outer.world_size) == (1, 1)


@pytest.mark.full
def test_whoever_has_the_port_but_no_token_ends_the_run_and_gets_nothing_else(apart, tmp_path):
    first, second, _ = apart(3).run(attacked, limit=500.0, folder=tmp_path)
    for attack, rounds in first.items():
        for number in rounds.keys() & second[attack].keys():
            assert rounds[number] == second[attack][number], attack


def listening():
    """The addresses at which this process listens, in hexadecimal."""
    links = (Path("/proc/self/fd") / each for each in os.listdir("/proc/self/fd"))
    sockets = {os.readlink(each)[8:-1] for each in links if each.is_symlink()}
    rows = [
        line.split()
        for name in ("tcp", "tcp6")
        for line in Path("/proc/net", name).read_text().splitlines()[1:]
    ]
    return {row[1] for row in rows if row[3] == "0A" and row[9] in sockets}


def unpickled(rank, folder):
    """Without a token, a stranger joins and sends a pickle, as ranks once did."""
    address, bomb = folder / "address", folder / "executed"
    before = listening()
    os.environ.pop("GLOO_SOCKET_IFNAME", None)  # which the tests set, and which would count
    server = serving(address, "127.0.0.2") if rank == 0 else None
    try:
        assert reaches(address.exists, LIMIT)
        members = diloco.Membership(address.read_text(), timeout=WHOLE)
        if rank == 1:
            assert reaches((folder / "trains").exists, LIMIT)
            data = SimpleNamespace(encode=lambda: pickle.dumps(Bomb(str(bomb))))

            def dumps(value, **options):
                told = isinstance(value, dict) and "held" in value
                return data if told else json.dumps(value, **options)

            sends = SimpleNamespace(dumps=dumps, loads=json.loads)
            said = "rank 1 sent a message that cannot be read"
            with (
                mock.patch.object(messages, "json", sends),
                pytest.raises(ExchangeError, match=said),
            ):
                Site(rank, members)
            return
        site = Site(rank, members)
        site.round(2)
        (folder / "trains").touch()
        site.until(lambda: site.outer.generation > 1)
        site.round(site.outer.rounds + 2)
        listens = listening() - before
        site.outer.close()
        assert not bomb.exists()
        assert set(site.sizes.values()) == {1}
        assert all(each[:9] in ("0100007F:", "0200007F:") for each in listens)
        assert any(each.startswith("0200007F:") for each in listens), "as the store does"
    finally:
        if server is not None:
            time.sleep(1.0)
            server.kill()
            server.wait()


def test_without_a_token_a_pickle_is_never_read_and_only_this_host_can_connect(apart, tmp_path):
    apart(2).run(unpickled, limit=300.0, folder=tmp_path)
