"""Checkpoints that are damaged in many ways, on one rank only."""

import copy
import json
import random
from typing import Any

import torch

import gradwire
from gradwire.schedule import Accordion
from tests.distributed.scenarios.common import Given, attached, integers, plain

BAD_VALUES: tuple[Any, ...] = (
    None,
    True,
    -1,
    0,
    2**53 + 1,
    2**63,
    2**64,
    10**400,
    1e300,
    float("nan"),
    float("-inf"),
    "",
    "x",
    [],
    [0],
    [2**63, 1],
    [-2, 0],
    [10**400, 10**400],
    {},
    {"a": 1},
    [[[]]],
)


def _tensors() -> list[Any]:
    return [
        torch.full((64, 40), torch.nan),
        torch.full((64, 40), torch.inf),
        torch.zeros(40, 64),
        torch.zeros(2560),
        torch.zeros(0),
        torch.zeros(()),
        torch.zeros(64, 40, dtype=torch.float64),
        torch.zeros(64, 40, dtype=torch.int8),
        torch.zeros(64, 40).to_sparse(),
        torch.zeros(64, 40, device="meta"),
        "tensor",
        None,
    ]


def _paths(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Every place in nested dicts and lists."""
    items: Any = ()
    if isinstance(value, dict):
        items = value.items()
    elif isinstance(value, list):
        items = enumerate(value)
    return [path] + [inner for key, each in items for inner in _paths(each, (*path, key))]


def _put(root: Any, path: tuple[Any, ...], value: Any, *, delete: bool) -> Any:
    if not path:
        return value
    for key in path[:-1]:
        root = root[key]
    if delete:
        del root[path[-1]]
    else:
        root[path[-1]] = value
    return None


def _damaged(saved: dict[str, Any], rank: int, chance: random.Random) -> tuple[str, Any]:
    """A copy with one thing wrong, and what that is."""
    whole = copy.deepcopy(saved)
    mine = whole[f"rank{rank}"]
    kind = chance.choice(["outside", "about", "tensor"])
    delete = chance.random() < 0.3
    if kind == "outside":
        path = chance.choice([path for path in _paths(whole) if len(path) <= 2])
        value = chance.choice(BAD_VALUES)
        replaced = _put(whole, path, value, delete=delete)
        return f"{path} := {value!r:.60} {delete}", whole if path else replaced
    if kind == "tensor":
        path = chance.choice([(), *[(name,) for name in mine["residual"]]])
        value = chance.choice(_tensors())
        replaced = _put(mine["residual"], path, value, delete=delete)
        if not path:
            mine["residual"] = replaced
        return f"residual{path} := {value!r:.60} {delete}", whole
    about = json.loads(mine["about"])
    path = chance.choice(_paths(about))
    value = chance.choice(BAD_VALUES)
    replaced = _put(about, path, value, delete=delete)
    mine["about"] = json.dumps(about if path else replaced)
    if chance.random() < 0.05:
        mine["about"] = mine["about"][: len(mine["about"]) // 2]
    return f"about{path} := {value!r:.60} {delete}", whole


def sweep(rank: int, world_size: int, count: int, seed: int) -> dict[str, Any]:
    """Load one damaged checkpoint after another; each is refused by all, or taken by all."""
    chance = random.Random(seed)
    options = {"schedule": Accordion(0.5, 0.05)}
    outcomes: list[tuple[str, str]] = []
    touched: list[str] = []
    with attached(Given(), gradwire.dgc(ratio=0.05), options=options) as (model, handle):
        for step in range(2):
            model(integers(9, rank, step)).backward()
        saved = handle.state_dict()
        everything = handle.gathered_state_dict(None)
        model(integers(9, rank, 2)).backward()
        before = plain(handle.state_dict())
        for _ in range(count):
            victim = chance.randrange(world_size)
            # The same damage is drawn on all ranks, and put in on one.
            name = f"rank{victim}"
            what, damaged = _damaged({name: everything[name]}, victim, chance)
            given = damaged if victim == rank else saved
            try:
                handle.load_state_dict(given)
                outcomes.append((what, "taken"))
                handle.load_state_dict(saved)
                model(integers(9, rank, 2)).backward()  # the residuals as they were before
                now = plain(handle.state_dict())
                before = now
            except ValueError as error:
                outcomes.append((what, str(error).split(":")[0]))
                now = plain(handle.state_dict())
            except Exception as error:
                outcomes.append((what, f"{type(error).__name__}: {error}"))
                now = before
            if now != before:
                touched.append(what)
    return {"outcomes": outcomes, "touched": touched}
