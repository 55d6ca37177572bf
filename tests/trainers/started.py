"""Programs that users start with torchrun, in ranks that are there already; and heavy imports."""

import importlib.util
import os
import sys


def lazily(name):
    """Return a module that is imported once it is used: by ranks, which have what it imports.

    The process of pytest only collects their tests, and importing a trainer takes seconds.
    """
    if name not in sys.modules:
        spec = importlib.util.find_spec(name)
        spec.loader = importlib.util.LazyLoader(spec.loader)
        sys.modules[name] = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(sys.modules[name])
    return sys.modules[name]


def as_started_by_torchrun(rank, size, per_node=None):
    """Set the variables of torchrun. The process group is there, so no address is used."""
    node, local = divmod(rank, per_node or size)
    started = {"RANK": rank, "LOCAL_RANK": local, "GROUP_RANK": node}
    started |= {"WORLD_SIZE": size, "LOCAL_WORLD_SIZE": per_node or size}
    os.environ.update({name: str(value) for name, value in started.items()})
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "1", "TORCHELASTIC_RUN_ID": "tests"}
