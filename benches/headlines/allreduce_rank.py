"""The process of one rank: all-reduces of one long vector, dense and quantised."""

import functools
import json
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

from torch.distributed.algorithms.ddp_comm_hooks import debugging_hooks

import gradwire
from benches.compare.exchange_rank import NUMEL, Method, attach, gradients, new_model, serve
from gradwire import exchange

DENSE, NOTHING = "fp32 all-reduce", "no exchange"
CODECS: dict[str, Callable[[], gradwire.Codec]] = {
    "adaptive": gradwire.adaptive,
    "onebit": gradwire.onebit,
}
EXCHANGES = ("QuantizedAllReduce", "AllGather")
"""By their names: those that this version has."""


def codecs() -> Iterator[tuple[str, gradwire.Codec]]:
    """Yield every codec with every exchange that it goes with."""
    for name, make in CODECS.items():
        for kind in EXCHANGES:
            made = getattr(exchange, kind, None)
            if made is not None:
                yield f"{name}, {kind}", replace(make(), exchange=made())


def methods(ranks: int) -> Iterator[tuple[str, Method]]:
    """Yield what takes part."""
    model = new_model()
    model.register_comm_hook(None, debugging_hooks.noop_hook)
    yield NOTHING, (model, lambda: None)
    dense = 2 * (ranks - 1) / ranks * 4.0 * NUMEL
    yield DENSE, (new_model(), lambda: dense)
    for name, codec in codecs():
        model = new_model()
        handle = attach(model, codec)
        yield name, (model, lambda handle=handle: handle.report().wire_bytes)  # type: ignore[misc]


def main(setup: dict[str, Any]) -> None:
    """Join the other ranks, and do what standard input says."""
    serve(setup, gradients, functools.partial(methods, setup["ranks"]), NUMEL)


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
