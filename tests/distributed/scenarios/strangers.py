"""Somebody who reaches the store of ranks that come and go, and is none of them."""

import json
import os
import pickle
import time
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

from gradwire.torch import diloco
from gradwire.torch.errors import ExchangeError, MembershipError
from gradwire.torch.transport import messages, stores
from tests.distributed.scenarios.common import reaches
from tests.distributed.scenarios.membership import LIMIT, Site, serving

TOKEN = "what only the ranks of this run know"
WHOLE = timedelta(seconds=30)


def roster(store: Any) -> dict[str, Any]:
    """The roster, which everybody can read."""
    _, _, text = store.get("roster").partition(b" ")
    found: dict[str, Any] = json.loads(text)
    return found


def joins(store: Any, old: bytes) -> None:
    """Write itself among those who wait."""
    found = roster(store)
    entry = {"held": 0, "failed": 0, "trained": True, "reached": []}
    found["waiting"]["stranger"] = entry
    store.set("roster", json.dumps({**found, "changes": found["changes"] + 1}))
    store.set("beat/stranger", "1")


def as_another(store: Any, old: bytes) -> None:
    """Change the roster under a proof of other bytes."""
    proof, _, _ = store.get("roster").partition(b" ")
    found = {**roster(store), "members": ["stranger"], "generation": 9}
    store.set("roster", proof + b" " + json.dumps(found).encode())


ATTACKS: dict[str, Callable[[Any, bytes], None]] = {
    "joins": joins,
    "as another": as_another,
    "bytes": lambda store, old: store.set("roster", b"\xff\xfe\x00"),
    "nested": lambda store, old: store.set("roster", "[" * 100_000),
    "pickle": lambda store, old: store.set("roster", pickle.dumps(Bomb("never"))),
    "replays": lambda store, old: store.set("roster", old),
    "deletes": lambda store, old: store.delete_key("roster"),
}


class Bomb:
    """Makes a file when it is unpickled."""

    def __init__(self, path: str) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, (self.path,)


def attacked(rank: int, world_size: int, folder: str) -> dict[str, Any]:
    """Two ranks train while the third process, which has no token, does what it can."""
    address = Path(folder) / "address"
    server = serving(address) if rank == 0 else None
    try:
        assert reaches(address.exists, LIMIT)
        store = address.read_text()
        act: Any = stranger if rank == 2 else member
        found: dict[str, Any] = {name: act(rank, folder, store, name) for name in ATTACKS}
        if rank < 2:
            found["wrong token"] = refused(store, rank)
        (Path(folder) / f"end{rank}").touch()
        return found
    finally:
        if server is not None:
            reaches(lambda: all((Path(folder) / f"end{each}").exists() for each in (1, 2)), LIMIT)
            server.kill()
            server.wait()


def member(rank: int, folder: str, store: str, name: str) -> dict[str, Any]:
    """Train until there is an error, and close."""
    members = diloco.Membership(store, token=TOKEN, name=name, timeout=WHOLE, min_size=2)
    site = Site(rank, members)
    site.round(3)
    (Path(folder) / f"{name}{rank}").touch()
    found: dict[str, Any] = {}
    try:
        site.until(lambda: False)
    except ExchangeError as error:
        found["error"] = type(error).__name__, str(error)
    # The last step may have made a round before it raised the error: then the other rank has it.
    found["as before"] = site.common() == site.rounds.setdefault(site.outer.rounds, site.common())
    found["saved"] = sorted(site.kind("shared"))
    site.outer.close()
    return {**found, **site.found()}


def stranger(rank: int, folder: str, store: str, name: str) -> None:
    """Watch the ranks train, and then attack."""
    host, _, port = store.rpartition(":")
    client = stores.TCPStore(host, int(port), is_master=False, wait_for_workers=False)
    inside = stores.PrefixStore(f"gradwire/{name}", client)
    inside.wait(["roster"], timedelta(seconds=LIMIT))
    old = inside.get("roster")
    for each in (0, 1):
        assert reaches((Path(folder) / f"{name}{each}").exists, LIMIT)
    ATTACKS[name](inside, old)


def refused(store: str, rank: int) -> list[str]:
    """Ranks with the token train; what has another one, or none, is told."""
    name = f"mixed{rank}"
    with Site(rank, diloco.Membership(store, token=TOKEN, name=name)).outer as outer:
        texts = []
        for token in ("another token, just as long", None):
            try:
                Site(9, diloco.Membership(store, token=token, name=name))
            except MembershipError as error:
                texts.append(str(error))
        outer.step()
        outer.step()
        assert (outer.rounds, outer.world_size) == (1, 1)
    return texts


def listening() -> set[str]:
    """The addresses at which this process listens, in hexadecimal."""
    links = (Path("/proc/self/fd") / each for each in os.listdir("/proc/self/fd"))
    sockets = {os.readlink(each)[8:-1] for each in links if each.is_symlink()}
    rows = [
        line.split()
        for name in ("tcp", "tcp6")
        for line in Path("/proc/net", name).read_text().splitlines()[1:]
    ]
    return {row[1] for row in rows if row[3] == "0A" and row[9] in sockets}


def unpickled(rank: int, world_size: int, folder: str) -> dict[str, Any]:
    """Without a token, a stranger joins and sends a pickle, as ranks once did."""
    address, bomb = Path(folder) / "address", Path(folder) / "executed"
    before = listening()
    os.environ.pop("GLOO_SOCKET_IFNAME", None)  # which the tests set, and which would count
    server = serving(address, "127.0.0.2") if rank == 0 else None
    try:
        assert reaches(address.exists, LIMIT)
        members = diloco.Membership(address.read_text(), timeout=WHOLE)
        if rank == 1:
            assert reaches((Path(folder) / "trains").exists, LIMIT)
            data = SimpleNamespace(encode=lambda: pickle.dumps(Bomb(str(bomb))))

            def dumps(value: Any, **options: Any) -> Any:
                told = isinstance(value, dict) and "held" in value
                return data if told else json.dumps(value, **options)

            sends = SimpleNamespace(dumps=dumps, loads=json.loads)
            with mock.patch.object(messages, "json", sends):
                try:
                    Site(rank, members)
                except ExchangeError as error:
                    return {"error": str(error)}
            return {}
        site = Site(rank, members)
        site.round(2)
        (Path(folder) / "trains").touch()
        site.until(lambda: site.outer.generation > 1)
        site.round(site.outer.rounds + 2)
        listens = sorted(listening() - before)
        site.outer.close()
        return {"executed": bomb.exists(), "sizes": site.sizes, "listens": listens}
    finally:
        if server is not None:
            time.sleep(1.0)
            server.kill()
            server.wait()
