"""Averages without the codec, beside those of Horovod's own optimizer."""

import contextlib
from typing import Any

import torch

import gradwire
from gradwire.torch.transport.horovod import library
from tests.distributed.scenarios.common import Given, gradients_of, integers
from tests.horovod.scenarios.training import Run, apart

CODECS = {"paused": gradwire.topk(ratio=0.05), "own": None}


def exact_sums(rank: int, world_size: int) -> dict[str, dict[str, bool]]:
    """Tell which averages are Horovod's own, of gradients whose sums are exact in any order."""
    cases: dict[str, dict[str, Any]] = {
        "plain": {},
        "groups": {"groups": 2},
        "passes": {"backward_passes_per_step": 2},
        "sum": {"op": library.Sum},
    }
    found = {}
    for name, wrap in cases.items():
        bits = {kind: _averages(kind, wrap, rank) for kind in CODECS}
        found[name] = {kind: each == bits["own"] for kind, each in bits.items()}
        assert len(set(bits["own"])) > 1
    return found


def _averages(kind: str, wrap: dict[str, Any], rank: int) -> list[bytes]:
    """Return the bits of the averages of some steps."""
    found: list[bytes] = []
    dtypes = {"a": torch.float64, "b": torch.float16}
    run = Run(CODECS[kind], model=Given(dtypes), lr=0.0, wrap=wrap)
    with run.handle.paused() if kind == "paused" else contextlib.nullcontext():
        for step in range(5):
            run.optimizer.zero_grad()
            for each in range(wrap.get("backward_passes_per_step", 1)):
                run.model(integers(5, rank, 10 * each + step)).backward()
            run.optimizer.synchronize()
            found.extend(each.tobytes() for each in gradients_of(run.model).values())
            with run.optimizer.skip_synchronize():
                run.optimizer.step()
    run.end()
    return found


def one_group(rank: int, world_size: int) -> float:
    """Train in one group; return how far that is from Horovod's own."""
    del world_size
    run, own = (Run(CODECS[each], wrap={"groups": 1}) for each in ("paused", "own"))
    with run.handle.paused():
        run.train(rank, range(8))
    own.train(rank, range(8))
    found = apart(run.model, own.model)
    run.end()
    return found
