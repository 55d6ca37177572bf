"""How trainers find the processes that are there already."""

import os


def as_started_by_torchrun(rank: int, world_size: int) -> None:
    """Set the variables of torchrun. The process group is there, so no address is used."""
    started = {"RANK": rank, "LOCAL_RANK": rank, "GROUP_RANK": 0, "TORCHELASTIC_RUN_ID": "tests"}
    started |= {"WORLD_SIZE": world_size, "LOCAL_WORLD_SIZE": world_size}
    started |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": 1}
    os.environ.update({name: str(value) for name, value in started.items()})
