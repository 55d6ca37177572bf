"""Ranks that train with ``auto``, whose encodes are as slow as on another processor."""

import time
from typing import Any

from benches.plan import rank
from gradwire.torch.exchange.all_gather import AllGatherExchange


class Commands(rank.Commands):
    def steps(self, method: str, count: int) -> dict[str, Any]:
        found = super().steps(method, count)
        handle: Any = self.loops[method].handle
        return {**found, "kinds": [handle._scheduler.mode]}


def join(setup: dict[str, Any], say: Any) -> Commands:
    exchange: Any = AllGatherExchange
    fill = exchange._fill

    def slowly(*arguments: Any) -> None:
        time.sleep(0.03)
        fill(*arguments)

    exchange._fill = slowly
    rank.join(setup, say)
    return Commands()
