"""The blocks of docs/horovod.md."""

import warnings
from typing import Any

import gradwire.torch.horovod as gh
from tests.distributed.scenarios.common import fingerprint
from tests.docs.guides import execute


def page(rank: int, world_size: int) -> dict[str, Any]:
    """Run every block, as a reader would paste them; return what each has trained."""
    warnings.simplefilter("error", gh.PairingWarning)
    prints = []

    def note(names: dict[str, Any]) -> None:
        if "model" in names:
            prints.append(fingerprint(names["model"]))

    names = execute("horovod", note)
    names["optimizer"].handle.detach()
    return {"epoch": names["state"].epoch, "prints": prints}
