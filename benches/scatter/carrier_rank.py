"""The process of one rank of `--carriers`: what each line on its standard input asks for."""

import json
import sys
import time
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist

from benches.joining import join, obey
from gradwire.torch.transport import p2p


class Commands:
    """What carries bytes between these ranks."""

    def move(self, way: str, nbytes: int, count: int) -> dict[str, Any]:
        """Have every rank send so many bytes to each other, so often; return the seconds."""
        size, rank, group = dist.get_world_size(), dist.get_rank(), dist.group.WORLD
        mine = torch.zeros(nbytes, dtype=torch.uint8)
        parts, out = (torch.zeros(nbytes * size, dtype=torch.uint8) for _ in range(2))
        theirs, own = (torch.split(each, nbytes) for each in (out, parts))
        ways: dict[str, Callable[[], Any]] = {
            "gather": lambda: dist.all_gather_into_tensor(out, mine),
            "all to all": lambda: dist.all_to_all_single(out, parts),
            "pairs": lambda: p2p.swap(group, rank, theirs, own).wait(),
        }
        seconds = []
        for _ in range(count):
            dist.barrier()
            begin = time.perf_counter()
            ways[way]()
            seconds.append(time.perf_counter() - begin)
        return {"seconds": seconds}


def main(setup: dict[str, Any]) -> None:
    """Obey standard input until it ends."""
    say = join(setup, seconds=60.0)
    say()
    obey(Commands(), say)


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
