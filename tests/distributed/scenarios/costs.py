"""Links that are measured on process groups."""

from typing import Any

import torch.distributed as dist

from gradwire.torch import cost


def links(rank: int, world_size: int) -> dict[str, Any]:
    """Measure the default group and another one; try a group of one rank."""
    found = cost.measure_link(seconds=0.05)
    again = cost.measure_link(dist.new_group(list(range(world_size))), seconds=0.05)
    alone = [dist.new_group([each]) for each in range(world_size)][rank]
    told = []
    for group, seconds in ((alone, 1.0), (None, 0.0), (None, -1.0)):
        try:
            cost.measure_link(group, seconds=seconds)
        except ValueError as error:
            told.append(str(error))
    return {"found": found, "again": again, "told": told}
