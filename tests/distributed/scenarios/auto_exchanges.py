"""Changes of the codec's exchange while a model trains: scripted ones, and one that is decided."""

import contextlib
import dataclasses
import json
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any
from unittest import mock

import numpy as np
import torch

import gradwire
from gradwire._auto import FP32, Figures, Model, Plan, Setting
from gradwire.cost import Link
from gradwire.torch.auto import controller as pilot
from gradwire.torch.ddp import GradientError, Handle
from gradwire.torch.exchange.all_gather import AllGatherExchange
from gradwire.torch.exchange.owners import OwnerExchange
from tests.distributed.scenarios.auto import (
    CODED,
    Known,
    every,
    other_figures,
    plan_of,
    ratios,
    scripted,
    sgd,
)
from tests.distributed.scenarios.common import (
    SHAPES,
    SMALL_BUCKETS,
    Given,
    about,
    attached,
    fingerprint,
    gradients_of,
    integers,
    network,
    residuals,
    train,
)

OWNED = Setting("codec", 0.05, "owners")


def both(count: int) -> Plan:
    """Gathered, dense and through owners, and the last bucket through owners."""
    return (*((CODED, FP32, OWNED)[at % 3] for at in range(count - 1)), OWNED)


def exchanges(handle: Handle) -> dict[str, str | None]:
    """The exchange of each compressed parameter now; None where it is dense."""
    return {
        name: None if each.paused else type(each.codec.exchange).__name__
        for name, each in handle._parameters.items()
        if each.state is not None
    }


@contextlib.contextmanager
def counted() -> Iterator["Counter[str]"]:
    """Count the buckets that go by each exchange."""
    calls: Counter[str] = Counter()
    with contextlib.ExitStack() as stack:
        for kind in (AllGatherExchange, OwnerExchange):

            def send(self: Any, *given: Any, kind: Any = kind, real: Any = kind.send) -> Any:
                calls[kind.__name__] += 1
                return real(self, *given)

            stack.enter_context(mock.patch.object(kind, "send", send))
        yield calls


def switching(rank: int, world_size: int, *, spoiled: bool) -> dict[str, Any]:
    """Integers, so that sums are exact: from one exchange to the other, and to none, and back."""
    given = {name: np.zeros(int(np.prod(shape))) for name, shape in SHAPES.items()}
    applied = {name: np.zeros_like(zero) for name, zero in given.items()}
    found: dict[str, Any] = {"exchanges": [], "left": [], "errors": [], "calls": []}
    module = Given()
    optimizer = sgd(module)
    plans = [CODED, OWNED, FP32, CODED, None, OWNED, FP32]
    with (
        counted() as calls,
        scripted(*(both if each is None else every(each) for each in plans)),
        attached(module, "auto", options={"optimizer": optimizer}, bucket_cap_mb=SMALL_BUCKETS) as (
            model,
            handle,
        ),
    ):
        for step in range(60 if spoiled else 40):
            gradients = integers(47, rank, step)
            dropped = spoiled and step % 3 == 2
            if dropped and step % 2 and rank == 1:
                gradients["a"][3, 4] = torch.nan
            optimizer.zero_grad()
            before, known = calls.copy(), handle.error
            model(gradients).backward()
            if (error := handle.error) is not known:  # the optimizer's step would raise it
                assert isinstance(error, GradientError)
                found["errors"].append((step, error.name, error.rank))
            found["exchanges"].append(exchanges(handle))
            found["calls"].append(dict(calls - before))
            if dropped:  # no step: what was sent must come back, also out of owners' residuals
                continue
            optimizer.step()
            for name, average in gradients_of(module).items():
                given[name] += gradients[name].numpy().ravel()
                # Integers, which a third of them is not.
                applied[name] += np.rint(average.astype(np.float64) * world_size)
            found["left"].append({key: each.any() for key, each in residuals(handle).items()})
        found["step"] = handle.step
        return {**found, "given": given, "applied": applied, "final": residuals(handle)}


def emptied(rank: int, world_size: int) -> dict[str, Any]:
    """Leave the codec with gradients in other places on every rank, which have many sums."""
    mine = {
        name: np.arange(int(np.prod(shape))) % world_size == rank for name, shape in SHAPES.items()
    }
    kinds = {"gathered": [CODED], "owned": [OWNED], "both": [CODED, OWNED]}
    found: dict[str, Any] = {}
    for kind, plans in kinds.items():
        given = {name: np.zeros(each.size) for name, each in mine.items()}
        applied = {name: np.zeros_like(zero) for name, zero in given.items()}
        record: dict[str, Any] = {"ways": [], "calls": [], "left": []}
        module = Given()
        optimizer = sgd(module)
        with (
            counted() as calls,
            scripted(*map(every, plans), every(FP32)),
            attached(
                module, "auto", options={"optimizer": optimizer}, bucket_cap_mb=SMALL_BUCKETS
            ) as (model, handle),
        ):
            for step in range(16):
                gradients = {
                    name: each * torch.from_numpy(mine[name].reshape(each.shape))
                    for name, each in integers(59, rank, step).items()
                }
                optimizer.zero_grad()
                before = calls.copy()
                model(gradients).backward()
                optimizer.step()
                shares = ratios(handle)
                record["ways"].append(
                    {
                        name: None if each is None else (each, shares[name])
                        for name, each in exchanges(handle).items()
                    }
                )
                record["calls"].append(dict(calls - before))
                for name, average in gradients_of(module).items():
                    given[name] += gradients[name].numpy().ravel()
                    applied[name] += np.rint(average.astype(np.float64) * world_size)
                record["left"].append(
                    {
                        name: {"any": each.any(), "of others": each[~mine[name]].any()}
                        for name, each in residuals(handle).items()
                    }
                )
            record |= {"given": given, "applied": applied, "final": residuals(handle)}
        found[kind] = record
    return found


def moments(rank: int, world_size: int) -> dict[str, Any]:
    """Second moments are each rank's own: no exchange makes a difference to them."""
    del world_size
    found: dict[str, Any] = {}
    kinds = {
        "gathered": [CODED],
        "changed": [CODED, OWNED, CODED, OWNED],
        "left": [CODED, OWNED, FP32],
    }
    for kind, plans in kinds.items():
        module = Given()
        weight = module.get_parameter("a")
        optimizer = torch.optim.AdamW(module.parameters(), lr=1e-2)
        steps: list[dict[str, Any]] = []
        with (
            scripted(*map(every, plans)),
            attached(
                module, "auto", options={"optimizer": optimizer}, bucket_cap_mb=SMALL_BUCKETS
            ) as (model, handle),
        ):
            for step in range(24):
                optimizer.zero_grad()
                model(integers(53, rank, step)).backward()
                optimizer.step()
                (mine,) = handle.state_dict().values()
                held = optimizer.state.get(weight)
                steps.append(
                    {
                        "exchange": exchanges(handle)["a"],
                        "print": fingerprint(module),
                        "own": mine["second_moment"]["a"].clone().numpy(),
                        "shared": held and held["exp_avg_sq"].clone().numpy(),
                        "ratio": (handle._parameters["a"].ratio or [None])[0],
                        "count": held and float(held["step"]),
                        "gradient": gradients_of(module)["a"].copy(),
                    }
                )
        found[kind] = steps
    return found


def resuming(rank: int, world_size: int, folder: str) -> dict[str, Any]:
    """Save while sums go through owners, and go on: with auto, across a change, with a codec."""
    del world_size
    by_owners = dataclasses.replace(
        gradwire.topk(ratio=0.05), exchange=gradwire.exchange.ReduceScatter()
    )

    def trained(
        what: Any, steps: range, *plans: Any, saved: Any = None, start: Any = None
    ) -> dict[str, Any]:
        module = network()
        if start is not None:
            module.load_state_dict(start)
        optimizer = torch.optim.SGD(module.parameters(), lr=0.05)
        options = {"min_ratio": 0.05} if what == "auto" else {}
        with (
            scripted(*plans),
            attached(
                module,
                what,
                options=options | {"optimizer": optimizer},
                bucket_cap_mb=SMALL_BUCKETS,
            ) as (model, handle),
        ):
            if saved is not None:
                handle.load_state_dict(saved)
            loaded = exchanges(handle)
            train(model, rank, steps, optimizer=optimizer)
            return {
                "print": fingerprint(module),
                "loaded": set(loaded.values()),
                "exchanges": set(exchanges(handle).values()),
                "state": handle.state_dict(),
                "weights": {key: each.clone() for key, each in module.state_dict().items()},
            }

    gathered, owned = every(CODED), every(OWNED)
    whole = trained("auto", range(22), gathered, owned)
    half = trained("auto", range(16), gathered, owned)
    torch.save(half["state"], f"{folder}/{rank}.pt")
    start, saved = half["weights"], half["state"]
    again = trained("auto", range(16, 22), saved=saved, start=start)
    as_codec = trained(by_owners, range(16, 22), saved=saved, start=start)
    # It is gathered when it is saved, and changes later.
    early = trained("auto", range(8), gathered)
    late = trained("auto", range(8, 22), owned, saved=early["state"], start=early["weights"])
    # What goes by both is put together in the first pass of a resumed run.
    mixed = trained("auto", range(11), both)
    with counted() as calls:
        trained("auto", range(11, 12), saved=mixed["state"], start=mixed["weights"])
    after = trained("auto", range(11, 22), both, saved=mixed["state"], start=mixed["weights"])
    return {
        "whole": whole["print"],
        "again": again["print"],
        "as codec": as_codec["print"],
        "loaded": again["loaded"],
        "kept": again["exchanges"],
        "saved": about(half["state"])["schedule"]["owners"],
        "early": "owners" in about(early["state"])["schedule"],
        "late": (late["loaded"], late["exchanges"], late["print"]),
        "together": dict(calls),
        "mixed": (mixed["exchanges"], after["loaded"], after["exchanges"], after["print"]),
        "left": half["state"][f"rank{rank}"]["residual"]["0.weight"].numpy(),
    }


def another_size(rank: int, world_size: int, folder: str) -> dict[str, Any]:
    """Go on with what three ranks have saved."""
    states = [torch.load(f"{folder}/{each}.pt", weights_only=True) for each in range(3)]
    module = network()
    optimizer = torch.optim.SGD(module.parameters(), lr=0.05)
    with (
        counted() as calls,
        scripted(),
        attached(module, "auto", options={"optimizer": optimizer}, bucket_cap_mb=SMALL_BUCKETS) as (
            model,
            handle,
        ),
    ):
        handle.load_state_dict(states)
        left = residuals(handle)["0.weight"]
        loaded = set(exchanges(handle).values())
        train(model, rank, range(3), optimizer=optimizer)
        return {
            "world": world_size,
            "loaded": loaded,
            "calls": dict(calls),
            "left": left,
            "print": fingerprint(module),
        }


def damaged(rank: int, world_size: int) -> list[str]:
    """What loading says of owners that are none."""
    del rank, world_size
    module = network()
    said = []
    with (
        scripted(),
        attached(module, "auto", options={"optimizer": sgd(module)}) as (_, handle),
    ):
        (key, mine) = next(iter(handle.state_dict().items()))
        for owners in ("0.weight", ["7.weight"], 3):
            text = json.loads(mine["about"])
            text["schedule"]["owners"] = owners
            try:
                handle.load_state_dict({key: {**mine, "about": json.dumps(text)}})
            except (TypeError, ValueError) as error:
                said.append(str(error))
        handle.load_state_dict({key: mine})
    return said


def in_eight_bits(rank: int, world_size: int) -> dict[str, Any]:
    """Send every entry, gathered and through owners, in front of an optimizer of torch."""
    del world_size
    module = network()
    optimizer = torch.optim.NAdam(module.parameters(), lr=1e-2)
    gathered, owned = Setting("codec"), Setting("codec", None, "owners")
    found: dict[str, Any] = {"prints": [], "exchanges": []}
    with (
        scripted(every(gathered), every(owned), every(FP32), every(owned), every(gathered)),
        attached(module, "auto", options={"optimizer": optimizer}, bucket_cap_mb=SMALL_BUCKETS) as (
            model,
            handle,
        ),
    ):
        for step in range(26):
            train(model, rank, range(step, step + 1), optimizer=optimizer)
            found["prints"].append(fingerprint(module))
            found["exchanges"].append(exchanges(handle)["0.weight"])
    return found


def deciding(rank: int, world_size: int) -> dict[str, Any]:
    """The decider itself, over a link on which owners take half of the time."""
    bandwidth = [1e5]
    handles: list[Handle] = []
    module = network()
    optimizer = sgd(module)
    gathered = other_figures(rank, bandwidth, handles)

    def measured(places: Sequence[Any], tensors: int, records: Sequence[Any]) -> Figures | None:
        figures = gathered(places, tensors, records)
        deciding: Any = handles[0]._passes.auto
        if figures is None or all(each.exchange == "gather" for each in deciding.plan):
            return figures
        half = tuple(0.5 * each for each in figures.exchange)
        return dataclasses.replace(
            figures, period=figures.period - sum(half), exchange=half, exposed=sum(half)
        )

    class Here(Known):
        """Evidence of so many ranks."""

        def model(self, figures: Figures) -> Model:
            link = Link(bandwidth[0])
            return Model(figures, world_size, link, self.calibration, self._ratios, owners=True)

    found: dict[str, Any] = {}
    with (
        mock.patch.object(pilot, "figures", measured),
        mock.patch.object(pilot, "Measured", Here),
        attached(module, "auto", options={"optimizer": optimizer}, bucket_cap_mb=SMALL_BUCKETS) as (
            model,
            handle,
        ),
    ):
        handles.append(handle)
        for step in range(150):
            train(model, rank, range(step, step + 1), optimizer=optimizer)
        report = handle.report()
        found["plan"], found["decision"] = plan_of(handle), report.decision
        found["shown"] = report.decision in str(report)
        found["exchanges"] = exchanges(handle)
        found["print"] = fingerprint(module)
    return found
