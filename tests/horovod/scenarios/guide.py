"""The blocks of the pages on Horovod."""

import warnings
from typing import Any

import gradwire.torch.horovod as gh
from tests.distributed.scenarios.common import fingerprint
from tests.docs.guides import execute


def page(rank: int, world_size: int, name: str) -> list[str]:
    """Run every block of a page, as a reader would paste them; return what each has trained."""
    warnings.simplefilter("error", gh.PairingWarning)
    prints = []

    def note(names: dict[str, Any]) -> None:
        if "optimizer" in names:
            prints.append(fingerprint(names["model"]))

    names = execute(name, note)
    names["optimizer"].handle.detach()
    return prints
