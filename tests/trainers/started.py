"""Programs that users start with torchrun, in ranks that are there already."""

import os


def as_started_by_torchrun(rank, size, per_node=None):
    """Set the variables of torchrun. The process group is there, so no address is used."""
    node, local = divmod(rank, per_node or size)
    started = {"RANK": rank, "LOCAL_RANK": local, "GROUP_RANK": node}
    started |= {"WORLD_SIZE": size, "LOCAL_WORLD_SIZE": per_node or size}
    os.environ.update({name: str(value) for name, value in started.items()})
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "1", "TORCHELASTIC_RUN_ID": "tests"}
