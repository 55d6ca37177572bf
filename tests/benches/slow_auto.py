"""A rank that trains with ``auto``, whose encodes are as slow as on another processor."""

import time
from typing import Any

from benches.study import rank
from gradwire.torch.exchange.all_gather import GatheredBucket

WIDTH, BUCKET_MB = 256, 0.3


class Commands(rank.Commands):
    def begin(self, min_ratio: float) -> None:
        self._task = rank.Large(1, 64, WIDTH)
        self._batches = [next(self._task.batches(0, 1, 0))]
        loop = rank.Loop(self._task.model(0), rank.AUTO, BUCKET_MB, min_ratio=min_ratio)
        self._loops = {rank.AUTO: loop}

    def steps(self, contestant: str, count: int) -> dict[str, Any]:
        found = super().steps(contestant, count)
        handle = self._loops[contestant].handle
        return {**found, "kinds": [handle._scheduler.mode]}


def join(setup: dict[str, Any], say: Any) -> Commands:
    bucket: Any = GatheredBucket
    fill = bucket._fill

    def slowly(*arguments: Any) -> None:
        time.sleep(0.03)
        fill(*arguments)

    bucket._fill = slowly
    rank.join(setup, say)
    return Commands(setup["rank"], setup["ranks"])
